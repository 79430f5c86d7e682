"""Things that end at a known time, in virtual time: copies under way beside the forward."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timers:
    """Actions by their time; those of one time run in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    @property
    def next_ms(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def at(self, when_ms: float, action: Callable[[float], None]) -> None:
        """`action` is called with its own time."""
        self._count += 1
        heapq.heappush(self._heap, (when_ms, self._count, action))

    def run_next(self) -> None:
        when_ms, _, action = heapq.heappop(self._heap)
        action(when_ms)


class Lane:
    """One link that carries one copy after the other."""

    def __init__(self) -> None:
        self._free_ms = 0.0

    def take(self, now_ms: float, duration_ms: float) -> float:
        """When a copy that is wanted now will be done."""
        self._free_ms = max(now_ms, self._free_ms) + duration_ms
        return self._free_ms
