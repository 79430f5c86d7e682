"""Faults that a test asks for: the next so many calls of the inference routes go wrong in one chosen way."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FaultKind(StrEnum):
    DROP = "drop"  # the connection closes without a byte of reply
    E500 = "500"
    E503 = "503"
    E429 = "429"
    E400 = "400"
    HANG = "hang"  # no byte until the client leaves or a reset
    SLOW = "slow"  # the reply starts `delay_ms` late
    MIDCUT = "midcut"  # the connection closes after the first event of a stream, or half way through a body
    SSE_ERROR = "sse_error"  # an error event instead of the first content, then [DONE]; not streamed: a 500


class Fault(msgspec.Struct, frozen=True):
    kind: FaultKind
    count: int = 1
    delay_ms: float = 0.0
    after_events: int = 1  # MIDCUT and SSE_ERROR: events that pass before


class FaultPlan:
    """Pending faults, first in first out."""

    MAX_PENDING = 1_024

    def __init__(self) -> None:
        self._pending: list[Fault] = []
        self.injected = 0

    def add(self, fault: Fault) -> None:
        """Raises ValueError when too many are pending or the count is no count."""
        if len(self._pending) >= self.MAX_PENDING:
            raise ValueError("too many pending faults; POST /_emulator/reset first")
        if fault.count < 1:
            raise ValueError("count must be at least 1")
        self._pending.append(fault)

    def take(self) -> Fault | None:
        """The fault of the call that starts now."""
        if not self._pending:
            return None
        fault = self._pending[0]
        if fault.count == 1:
            self._pending.pop(0)
        else:
            self._pending[0] = msgspec.structs.replace(fault, count=fault.count - 1)
        self.injected += 1
        return fault

    def clear(self) -> None:
        self._pending.clear()
