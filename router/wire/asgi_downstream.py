"""A reply sent through plain ASGI: the slow, obvious twin of `TransportDownstream`, for any ASGI server and test client.

Synchronous calls append to a queue; `pump`, one task's body, sends it. ASGI cannot reset a connection: `abort` makes the
application raise `ReplyAborted`, on which servers break the connection without ending the message (before `start`: answer 500).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from router.wire.downstream import is_bodiless
from router.wire.head import Header
from router.wire.transport_downstream import declared_length

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_HIGH_WATER_BYTES = 65_536


class ReplyAborted(Exception):
    """The reply was aborted on purpose; the server must break the connection."""


class AsgiDownstream:
    """A `Downstream` (see there) over one ASGI `send`."""

    def __init__(self, method: str) -> None:
        self.on_disconnect: Callable[[], None] | None = None
        self.on_full: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.disconnected = False
        self.started = False
        self.aborted = False
        self._finished = False
        self._method = method
        self._bodiless = False
        self._left: int | None = None
        self._head: MutableMapping[str, Any] | None = None
        self._queue: deque[MutableMapping[str, Any]] = deque()
        self._queued_bytes = 0
        self._full = False
        self._wake = asyncio.Event()

    @property
    def done(self) -> bool:
        return self._finished or self.aborted or self.disconnected

    @property
    def writable(self) -> bool:
        return not self._full

    def start(self, status: int, headers: Sequence[Header]) -> None:
        if self.done:
            return
        if self.started:
            raise RuntimeError("the reply was already started")
        self.started = True
        self._bodiless = is_bodiless(self._method, status)
        if not self._bodiless:
            self._left = declared_length(headers)
        self._head = {"type": "http.response.start", "status": status, "headers": list(headers)}

    def write(self, data: bytes) -> None:
        if self.done or not data or self._bodiless:
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.abort()
                return
        self.flush()
        self._queued_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if not self._full and self._queued_bytes > _HIGH_WATER_BYTES:
            self._full = True
            if self.on_full is not None:
                self.on_full()

    def flush(self) -> None:
        if self._head is not None and not self.done:
            head, self._head = self._head, None
            self._put(head)

    def finish(self) -> None:
        if self.done:
            return
        if not self.started:
            raise RuntimeError("the reply was never started")
        if self._left:
            self.abort()
            return
        self.flush()
        self._finished = True
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self.on_disconnect = self.on_full = self.on_writable = None

    def abort(self) -> None:
        if not self.done:
            self.flush()  # a server that has sent no head yet would answer with one of its own
            self.aborted = True
            self.on_disconnect = self.on_full = self.on_writable = None
            self._wake.set()

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self.done:
            return
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.write(body)
        self.finish()

    async def pump(self, send: Send) -> None:
        """Send what is queued until the reply is done. Raises ReplyAborted."""
        while not self.disconnected:
            if self.aborted and not (self._queue and self._queue[0]["type"] == "http.response.start"):
                raise ReplyAborted
            if self._queue:
                message = self._queue.popleft()
                try:
                    await send(message)
                except OSError:  # how some servers say that the client is gone
                    self.lost()
                    return
                self._sent(message)
            elif self._finished:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    async def watch(self, receive: Receive) -> None:
        """Wait for the client to leave. ASGI servers also say so after the end of the reply, which is then not news."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.lost()

    def lost(self) -> None:
        """The client is gone."""
        if not self.done:
            self.disconnected = True
            left, self.on_disconnect, self.on_full, self.on_writable = self.on_disconnect, None, None, None
            self._wake.set()
            if left is not None:
                left()

    def _put(self, message: MutableMapping[str, Any]) -> None:
        self._queue.append(message)
        self._wake.set()

    def _sent(self, message: MutableMapping[str, Any]) -> None:
        self._queued_bytes -= len(message.get("body", b""))
        if self._full and self._queued_bytes <= _HIGH_WATER_BYTES // 4:
            self._full = False
            if self.on_writable is not None:
                self.on_writable()
