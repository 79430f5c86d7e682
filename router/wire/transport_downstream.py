"""A reply written straight to uvicorn's transport: one `write` per piece, no task and no ASGI message in between.

To uvicorn's protocol it looks like one of its own request cycles (`response_complete`, `keep_alive`, `disconnected`), so that
keep-alive, pipelining and graceful shutdown stay uvicorn's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from router.wire.downstream import is_bodiless, status_line
from router.wire.head import Header
from router.wire.sockets import reset

_JOIN_BYTES = 16_384  # above this, writev beats copying into one buffer
_LAST_CHUNK = b"0\r\n\r\n"


class ReplyOwner(Protocol):
    """The connection that a reply is written to."""

    @property
    def writable(self) -> bool: ...

    def reply_done(self) -> None:
        """The reply is out (or handed to the transport): close the connection or take the next request."""
        ...


class TransportDownstream:
    """A `Downstream` (see there). `keep_alive` may be cleared at any time before the end: the connection closes then.

    Defaults stand in the class: most replies change few of them.
    """

    on_disconnect: Callable[[], None] | None = None
    on_full: Callable[[], None] | None = None
    on_writable: Callable[[], None] | None = None
    disconnected = False
    response_complete = False  # finished or aborted
    started = False
    _held_head = b""
    _chunked = False
    _bodiless = False
    _left: int | None = None  # of a declared content-length

    def __init__(self, owner: ReplyOwner, transport: asyncio.Transport, method: str, http_1_0: bool, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self._owner = owner
        self._transport = transport
        self._method = method
        self._http_1_0 = http_1_0

    @property
    def done(self) -> bool:
        return self.response_complete or self.disconnected

    @property
    def writable(self) -> bool:
        return self._owner.writable

    def start(self, status: int, headers: Sequence[Header]) -> None:
        if self.response_complete or self.disconnected:
            return
        if self.started:
            raise RuntimeError("the reply was already started")
        self.started = True
        lines = [status_line(status)]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if is_bodiless(self._method, status):
            self._bodiless = True
        else:
            self._left = declared_length(headers)
            if self._left is None:
                if self._http_1_0:
                    self.keep_alive = False
                else:
                    self._chunked = True
                    lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._held_head = b"".join(lines)

    def write(self, data: bytes) -> None:
        if self.response_complete or self.disconnected or not data or self._bodiless:
            return
        size = len(data)
        head = self._held_head
        parts: tuple[bytes, ...]
        if self._chunked:
            parts = (head, b"%x\r\n" % size, data, b"\r\n")
        else:
            if self._left is not None:
                self._left -= size
                if self._left < 0:
                    self.abort()
                    return
            parts = (head, data)
        self._held_head = b""
        if size < _JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines([part for part in parts if part])

    def flush(self) -> None:
        if self._held_head and not self.done:
            self._transport.write(self._held_head)
            self._held_head = b""

    def finish(self) -> None:
        if self.response_complete or self.disconnected:
            return
        if not self.started:
            raise RuntimeError("the reply was never started")
        if self._left:
            self.abort()
            return
        tail = self._held_head + _LAST_CHUNK if self._chunked else self._held_head
        if tail:
            self._transport.write(tail)
        self._close()
        self._owner.reply_done()

    def abort(self) -> None:
        if not self.done:
            self._close()
            reset(self._transport)

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self.done:
            return
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.write(body)
        self.finish()

    def lost(self) -> None:
        """For the connection: the client is gone."""
        if self.response_complete:
            return
        self.disconnected = True
        left, self.on_disconnect, self.on_full, self.on_writable = self.on_disconnect, None, None, None
        if left is not None:
            left()

    def _close(self) -> None:
        self.response_complete = True
        # Callers' closures refer back to this reply: cleared, so that nothing waits for the cycle collector.
        self.on_disconnect = self.on_full = self.on_writable = None


def declared_length(headers: Sequence[Header]) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None
