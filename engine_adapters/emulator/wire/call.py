"""What a dialect of the emulator's wire must do; the exchange itself is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine_adapters.emulator.wire.errors import BadRequest
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step


class EventStream(Protocol):
    """Turns steps into the bytes of one SSE stream."""

    def start(self) -> list[bytes]:
        """Events that need nothing computed; only sent by dialects whose head goes first."""
        ...

    def step(self, step: Step) -> list[bytes]:
        """The events that this step adds; may be none."""
        ...

    def end(self, last: Sequence[Step]) -> list[bytes]:
        """The events after the last step, [DONE] included where the dialect has one. `last` is each job's last step."""
        ...

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        """The rest of a stream that cannot go on."""
        ...


class Call(Protocol):
    """One parsed request."""

    jobs: tuple[Job, ...]
    stream: bool

    def whole(self, last: Sequence[Step]) -> dict[str, Any]:
        """The reply of a call that is not streamed."""
        ...

    def events(self) -> EventStream: ...


class Dialect(Protocol):
    """One inference route. `head_first`: a stream's 200 goes out before anything is computed."""

    @property
    def head_first(self) -> bool: ...

    @property
    def stream_headers(self) -> tuple[tuple[bytes, bytes], ...]: ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Call:
        """Raises BadRequest."""
        ...

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        """Status and body of a reply that has no 200."""
        ...
