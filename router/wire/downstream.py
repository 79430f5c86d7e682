"""One client's reply, whatever carries it. Refuses to know what the bytes mean.

Two implementations share one test suite: `TransportDownstream` writes to the server's socket, `AsgiDownstream` speaks ASGI.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Sequence
from typing import Protocol

from router.wire.head import Header

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}


class Downstream(Protocol):
    """All methods are synchronous and do nothing once the reply is finished, aborted or the client is gone.

    Framing follows the head: with `content-length` as is, else chunked (HTTP/1.0: until close). HEAD, 204 and 304 have no body.
    A reply that does not keep the length it declared is aborted.
    """

    on_disconnect: Callable[[], None] | None  # called once when the client leaves before the reply is finished
    on_full: Callable[[], None] | None  # called when `writable` turns false
    on_writable: Callable[[], None] | None  # called when it turns true again

    @property
    def disconnected(self) -> bool: ...

    @property
    def started(self) -> bool:
        """`start` was called; nothing else can be answered any more."""
        ...

    @property
    def done(self) -> bool:
        """Finished, aborted or disconnected."""
        ...

    @property
    def writable(self) -> bool:
        """False while more bytes wait for the client than the high-water mark. Writing still works; it only costs memory."""
        ...

    def start(self, status: int, headers: Sequence[Header]) -> None:
        """Give the head: end-to-end fields, names in lower case. It goes out with the first body bytes, or by `flush`."""
        ...

    def write(self, data: bytes) -> None:
        """Send body bytes now, the head before them."""
        ...

    def flush(self) -> None:
        """Send the head now, if it has not gone yet."""
        ...

    def finish(self) -> None:
        """End the reply cleanly. A keep-alive connection takes the client's next request."""
        ...

    def abort(self) -> None:
        """Break the connection so that no client can take what it got for a complete reply. Never calls `on_disconnect`."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A whole reply in one write; `content-length` is added. Only before `start`."""
        ...


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def is_bodiless(method: str, status: int) -> bool:
    """Whether a reply carries no body whatever its fields say (RFC 9110 6.4.1)."""
    return status < 200 or status == 204 or status == 304 or method == "HEAD"
