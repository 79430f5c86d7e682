"""The client's side of one turn: what may still be sent to it, whichever try it comes from.

Headers of a stream wait for the first real event, so that a failed try can be repeated unseen; after `commit_s` of silence
they go out at last (clients give up without headers), with keep-alives in the dialect's own form. Once a real event was
written the reply can only be finished or aborted, never repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from router.config.tree import TimeoutConfig
from router.dialects.dialect import Dialect
from router.wire.downstream import Downstream
from router.wire.head import Header

_STREAM_HEADERS: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class EngineSide(Protocol):
    """Where the bytes of a try come from."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def silent_s(self, now_s: float) -> float:
        """Since its last bytes, on the loop's clock."""
        ...


class ReplyPort(Protocol):
    """Where one try's reply goes: the client itself, or one branch of an `n` > 1 request."""

    committed: bool  # a real event or a whole reply has gone out

    def start_stream(self, headers: list[Header]) -> None: ...

    @property
    def write(self) -> Callable[[bytes], None]:
        """What takes the events of a stream. May be kept: it is asked for once a try."""
        ...

    def finish_stream(self) -> None: ...

    def respond(self, status: int, headers: list[Header], body: bytes) -> None: ...

    def abort(self) -> None:
        """The reply broke after it was committed: never end it cleanly."""
        ...

    def attach(self, engine: EngineSide) -> None:
        """The try's engine: to be slowed down while the client reads slowly."""
        ...


class ClientPort:
    """The port of a whole turn. `on_keep_alive` counts them."""

    def __init__(
        self,
        down: Downstream,
        dialect: Dialect,
        timeouts: TimeoutConfig,
        on_keep_alive: Callable[[], None],
    ) -> None:
        self.committed = False
        self.closed = False
        self._down = down
        self._dialect = dialect
        self._timeouts = timeouts
        self._on_keep_alive = on_keep_alive
        self._head_sent = False
        self._loop = asyncio.get_running_loop()
        self._written_s = self._loop.time()  # by this port; events go past it
        self._engine: EngineSide | None = None
        self._stalled_s: float | None = None  # since when the client has been taking nothing
        self._timer: asyncio.TimerHandle | None = None
        self._early_headers: Callable[[], list[Header]] = list

    @property
    def head_sent(self) -> bool:
        return self._head_sent

    def keep_open(self, early_headers: Callable[[], list[Header]]) -> None:
        """Start the silence timer of a streamed turn. `early_headers` names the worker of the try that runs then."""
        self._early_headers = early_headers
        self._arm(self._timeouts.commit_s)

    def start_stream(self, headers: list[Header]) -> None:
        if not self._head_sent:
            self._head_sent = True
            self._down.start(200, headers)
            self._arm(self._timeouts.keep_alive_s)
        self.committed = True

    @property
    def write(self) -> Callable[[bytes], None]:
        return self._down.write

    def finish_stream(self) -> None:
        self.close()
        self._down.finish()

    def respond(self, status: int, headers: list[Header], body: bytes) -> None:
        """A whole reply at once. After early headers only an abort can say that it failed."""
        self.committed = True
        self.close()
        if self._head_sent:
            self._down.abort()
        else:
            self._down.respond(status, headers, body)

    def abort(self) -> None:
        self.close()
        self._down.abort()

    def attach(self, engine: EngineSide) -> None:
        self._engine = engine
        down = self._down
        down.on_full, down.on_writable = engine.pause_reading, engine.resume_reading
        if not down.writable:
            engine.pause_reading()

    def close(self) -> None:
        self.closed = True
        if self._timer:
            self._timer.cancel()
        self._early_headers = list  # both lead back to this reply: nothing shall wait for the cycle collector
        self._engine = None

    def _arm(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._on_silence)

    def _on_silence(self) -> None:
        if self.closed:
            return
        if not self._head_sent:
            self._head_sent = True
            self._down.start(200, _STREAM_HEADERS + self._early_headers())
            self._down.flush()
        if not self._down.writable:
            self._on_stall()
            return
        self._stalled_s = None
        silent_s = self._silent_s()
        if silent_s >= self._timeouts.keep_alive_s * 0.99:
            self._on_keep_alive()
            self._written_s = self._loop.time()
            self._down.write(self._dialect.keep_alive)
            silent_s = 0.0
        self._arm(self._timeouts.keep_alive_s - silent_s)

    def _on_stall(self) -> None:
        """Looked at with every keep-alive: a client that reads nothing must not keep its place and its engine for ever."""
        now_s = self._loop.time()
        if self._stalled_s is None:
            self._stalled_s = now_s
        if now_s - self._stalled_s < self._timeouts.client_stall_s:
            self._arm(min(self._timeouts.keep_alive_s, self._timeouts.client_stall_s))
            return
        left = self._down.on_disconnect
        self._down.abort()
        if left is not None:
            left()

    def _silent_s(self) -> float:
        """Since anything went to the client. Once events do, what the engine sends goes on at once."""
        now_s = self._loop.time()
        silent_s = now_s - self._written_s
        if self.committed and self._engine is not None:
            silent_s = min(silent_s, self._engine.silent_s(now_s))
        return max(0.0, silent_s)
