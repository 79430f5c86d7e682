"""One request and its reply on the way to an engine: what a caller holds (`Exchange`) and what it is told (`ReplySink`).

Knows neither sockets nor HTTP framing. Exactly one of `on_end` and `on_error` is the last call to a sink; after `abort()` there
is none. Nothing is called from within `start()`.
"""

from __future__ import annotations

from typing import Protocol

from router.errors import EngineError, EngineTimeout
from router.wire.deadlines import Deadlines
from router.wire.head import Header


class ReplySink(Protocol):
    """Receives one reply, in order: `on_head`, any number of `on_body`, then `on_end`; or `on_error` at any point.

    `on_head` and `on_body` may raise an EngineError about what they were given: the exchange is dropped and `on_error` gets it.
    """

    def on_head(self, status: int, headers: list[Header]) -> None:
        """Status 200-599 and the fields in their order, names in lower case. Interim (1xx) replies are not shown."""
        ...

    def on_body(self, data: bytes) -> None:
        """Body bytes with transfer coding removed; whatever one read of the socket brought, never empty."""
        ...

    def on_end(self) -> None:
        """The reply is complete as its own framing says."""
        ...

    def on_error(self, error: EngineError) -> None:
        """ConnectFailed, StaleConnection, EngineTimeout or EngineDied. Nothing follows."""
        ...


class Carrier(Protocol):
    """What moves an exchange's bytes: a connection, or the attempt to open one."""

    def drop(self) -> None:
        """Abort the transport and forget the exchange, without a word to its sink."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Nobody:
    """The sink of an exchange that is over."""

    def on_head(self, status: int, headers: list[Header]) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_error(self, error: EngineError) -> None: ...


_NOBODY = _Nobody()


class Exchange:
    """`heard`: a byte of the reply has come. `reused`: the connection had served before."""

    __slots__ = (
        "__weakref__",
        "_carrier",
        "_deadlines",
        "_paused",
        "done",
        "due_s",
        "due_tick",
        "first_byte_timeout_s",
        "heard",
        "idle_timeout_s",
        "reused",
        "sink",
    )

    def __init__(self, sink: ReplySink, deadlines: Deadlines, first_byte_timeout_s: float, idle_timeout_s: float) -> None:
        self.sink = sink
        self.first_byte_timeout_s = first_byte_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.done = False
        self.heard = False
        self.reused = False
        self.due_s = 0.0
        self.due_tick = 0
        self._deadlines = deadlines
        self._carrier: Carrier | None = None
        self._paused = False

    def abort(self) -> None:
        """Drop the connection at once: the engine sees the client leave. Does nothing when done."""
        if not self.done:
            carrier = self._carrier
            self.close()
            if carrier is not None:
                carrier.drop()

    def pause_reading(self) -> None:
        """Take no more bytes from the engine. What the last read brought may still be delivered. Its deadline rests."""
        if not self.done and not self._paused:
            self._paused = True
            self._deadlines.disarm(self)
            if self._carrier is not None:
                self._carrier.pause_reading()

    def resume_reading(self) -> None:
        if not self.done and self._paused:
            self._paused = False
            self._deadlines.arm(self, self.idle_timeout_s if self.heard else self.first_byte_timeout_s)
            if self._carrier is not None:
                self._carrier.resume_reading()

    def silent_s(self, now_s: float) -> float:
        """Since the last bytes of the reply, or since reading was resumed. Only once `heard`."""
        return now_s - (self.due_s - self.idle_timeout_s)

    @property
    def paused(self) -> bool:
        return self._paused

    def attach(self, carrier: Carrier) -> None:
        """The carrier takes over and the wait for the first byte begins."""
        self._carrier = carrier
        if self._paused:
            carrier.pause_reading()
        else:
            self._deadlines.arm(self, self.first_byte_timeout_s)

    def close(self) -> ReplySink:
        """Mark done, without calls; the sink, for the carrier's last call to it.

        Sinks know their exchange: it lets go of them here, or every request's body would wait for the cycle collector.
        """
        sink, self.sink = self.sink, _NOBODY
        self.done = True
        self._carrier = None
        self._deadlines.disarm(self)
        return sink

    def fail(self, error: EngineError) -> None:
        """For carriers: the transport is gone or going."""
        if not self.done:
            self.close().on_error(error)

    def on_deadline(self) -> None:
        carrier = self._carrier
        what = "silent for" if self.heard else "no reply byte within"
        limit_s = self.idle_timeout_s if self.heard else self.first_byte_timeout_s
        sink = self.close()
        if carrier is not None:
            carrier.drop()
        sink.on_error(EngineTimeout(f"engine {what} {limit_s:g} s"))
