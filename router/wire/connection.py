"""One HTTP/1.1 connection to an engine: bytes out, llhttp in, one exchange at a time.

Refuses to know who asks and what the bytes mean. Everything is a callback of the loop. All calls to the sink are made after the
parser has returned, so a sink may abort its exchange or start another from any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

import httptools

from router.errors import EngineDied, EngineError, StaleConnection
from router.wire.exchange import Exchange
from router.wire.head import Header
from router.wire.origin import Origin
from router.wire.sockets import probe_when_silent, reset


class Pool(Protocol):
    """Where connections wait between requests."""

    def release(self, connection: UpstreamConnection) -> None:
        """Ready for the next request."""
        ...

    def forget(self, connection: UpstreamConnection) -> None:
        """Closed, for whatever reason."""
        ...


class UpstreamConnection(asyncio.Protocol):
    def __init__(self, pool: Pool, origin: Origin, loop: asyncio.AbstractEventLoop, max_head_bytes: int) -> None:
        self.origin = origin
        self.idle_since_s = 0.0
        self.served = 0
        self._pool = pool
        self._now = loop.time
        self._max_head_bytes = max_head_bytes
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._no_body = False  # the reply to HEAD has none whatever it declares
        self._status = 0
        self._headers: list[Header] = []
        self._pieces: list[bytes] = []
        # The parser appends body slices to the list itself: no Python frame per chunk.
        self.on_body = self._pieces.append
        self._reset()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        self._head_bytes = 0
        self._head_parsed = False
        self._complete = False
        self._surplus = False
        self._until_close = False
        self._keep_alive = True
        self._body_pieces = 0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        """Write one request. The body's parts are handed to the transport as they are: big ones are not joined or copied."""
        transport = self._transport
        assert transport is not None
        self._exchange = exchange
        self._no_body = head.startswith(b"HEAD ")
        exchange.reused = self.served > 0
        self.served += 1
        exchange.attach(self)
        size = sum(map(len, body))
        if size <= 16384:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))

    # Carrier

    def drop(self) -> None:
        self._exchange = None
        if self._transport is not None:
            reset(self._transport)

    def close(self) -> None:
        """End an idle connection politely."""
        if self._transport is not None:
            self._transport.close()

    def shut(self) -> None:
        """End a connection whatever it is doing; a running exchange fails."""
        if self._exchange is not None:
            self._fail("the pool was closed")
        elif self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without inheriting from it
        probe_when_silent(transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nobody asked: a late 408, or bytes after a complete reply
            self.drop()
            return
        exchange.heard = True
        exchange.due_s = self._now() + exchange.idle_timeout_s
        error = self._parse(data)
        if self._head_parsed:
            try:
                self._deliver(exchange)
            except EngineError as refused:
                self.drop()
                exchange.fail(refused)
                return
        if error is not None and not exchange.done:
            self._fail(error)

    def _parse(self, data: bytes) -> str | None:
        """Feed the parser; what is wrong with the bytes, if anything."""
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserUpgrade:
            return "engine switched protocols"
        except httptools.HttpParserError as error:
            return f"engine sent bytes that are not HTTP: {error}"
        if not self._head_parsed:
            self._head_bytes += len(data)
            if self._head_bytes > self._max_head_bytes:
                return f"engine's reply head exceeds {self._max_head_bytes} bytes"
        return None

    def _deliver(self, exchange: Exchange) -> None:
        if self._headers is not _NONE:
            headers, self._headers = self._headers, _NONE
            exchange.sink.on_head(self._status, headers)
            if exchange.done:
                return
        pieces = self._pieces
        if self._complete and self._surplus:
            del pieces[self._body_pieces :]
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            exchange.sink.on_body(data)
            if exchange.done:
                return
        if self._complete:
            self._finish(exchange)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if self._until_close and self._head_parsed:
            self._finish(exchange)
        else:
            self._fail("engine closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._transport = None
        self._parser = None
        if self._exchange is not None:
            self._fail(f"connection to the engine lost: {exc}" if exc else "connection to the engine lost")

    # the parser's callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_parsed:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if status < 200:
            return
        self._status = status
        self._head_parsed = True
        self._keep_alive = parser.should_keep_alive()
        if not self._keep_alive:
            self._until_close = status not in (204, 304) and not _is_framed(self._headers)
        if self._no_body:
            self._complete, self._keep_alive = True, False

    def on_message_complete(self) -> None:
        if self._head_parsed:
            if not self._complete:
                self._complete = True
                self._body_pieces = len(self._pieces)
        else:
            self._headers.clear()  # an interim reply

    # ends

    def _finish(self, exchange: Exchange) -> None:
        transport = self._transport
        assert transport is not None
        paused = exchange.paused
        sink = exchange.close()
        self._exchange = None
        # An engine that answered before it had read the whole request leaves the connection out of step.
        if self._keep_alive and not self._surplus and not transport.is_closing() and not transport.get_write_buffer_size():
            self._headers = []
            self._reset()
            if paused:
                transport.resume_reading()
            self._pool.release(self)
        else:
            transport.abort()
        sink.on_end()

    def _fail(self, reason: str) -> None:
        exchange = self._exchange
        assert exchange is not None
        self.drop()
        stale = exchange.reused and not exchange.heard
        exchange.fail(StaleConnection(reason) if stale else EngineDied(reason))


_NONE: list[Header] = []  # stands for "head already delivered"


def _is_framed(headers: Sequence[Header]) -> bool:
    """Whether the reply says itself where it ends (RFC 9112 6.3)."""
    for name, value in headers:
        if name == b"content-length":
            return True
        if name == b"transfer-encoding":
            return value.lower().endswith(b"chunked")
    return False
