"""uvicorn's HTTP protocol with a short cut: requests on hot paths reach their handler without ASGI scope, task or messages.

Parsing, keep-alive, pipelining and shutdown are uvicorn's own; a hot request takes part in them as one more kind of request
cycle (`_HotCycle`). Measured against the same handler behind plain ASGI it halves a small request's cost (bench/overhead).
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import httptools
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.errors import BadRequest, BodyTooLarge, GatewayError, HeadTooLarge
from router.wire.request import HotRequest, render_openai_error
from router.wire.routes import HotRoutes
from router.wire.sockets import reset
from router.wire.transport_downstream import TransportDownstream

_log = structlog.get_logger(__name__)
_RAW_BODY_BYTES = 65_536  # from this on, body bytes of known length go round the parser, which would copy them once more
_MAX_HEAD_BYTES = 65_536
_LINGER_S = 1.0  # how long a refused body is read and thrown away, so that its sender gets to read the refusal


class _Event:
    """Stands for the event that uvicorn sets to wake a cycle's task; a hot cycle has no task."""

    def set(self) -> None:
        pass


_EVENT = _Event()


class _HotCycle(TransportDownstream):
    """A hot request on its way in, and its reply on the way out."""

    message_event = _EVENT
    size = 0
    length: int | None = None  # as declared
    complete = False  # the whole body is here
    serving = False  # its turn has come: no earlier request of the connection is unanswered
    offers_upgrade = False
    refusal: GatewayError | None = None

    def __init__(self, protocol: HotProtocol, method: str, path: str, query: bytes, http_1_0: bool, keep_alive: bool) -> None:
        super().__init__(protocol, protocol.transport, method, http_1_0, keep_alive)
        self.method = method  # POST, but for a request that is only refused
        self.path = path
        self.query = query
        self.headers = protocol.headers
        self.pieces: list[bytes] = []


class HotProtocol(HttpToolsProtocol):
    """One client's connection. `routes` is shared by all connections of a server."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        routes: HotRoutes,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._routes = routes
        self._deadlines = routes.deadlines(self.loop)
        self._serving: _HotCycle | None = None
        self._ready: _HotCycle | None = None  # complete, to be handled as soon as the parser returns
        self._raw: _HotCycle | None = None  # whose body is being read round the parser
        self._rest_bytes = 0  # of an ordinary request's body, read so as well: its head offers to upgrade
        self._between_requests = True
        self._in_head = False
        self._begun = False  # a head began since one was last waited for
        self._fed_bytes = 0  # what the parser is reading
        self._head_bytes = 0  # of the head being received, without those that came with its first byte
        self._discarding = False
        self.due_s = 0.0
        self.due_tick = 0

    @property
    def writable(self) -> bool:
        return not self.flow.write_paused

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadlines.arm(self, self._routes.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadlines.disarm(self)
        super().connection_lost(exc)
        serving, self._serving, self._raw, self._ready = self._serving, None, None, None
        if serving is not None:
            serving.lost()

    def data_received(self, data: bytes) -> None:
        start, size = 0, len(data)
        while start < size and not self.transport.is_closing():
            if self._raw is not None:
                start = self._receive_raw(self._raw, data, start)
            elif self._discarding:
                return
            elif self._rest_bytes:
                start = self._receive_rest(data, start)
            else:
                start += self._feed(data[start : self._feed_end(data, start)])

    def pause_writing(self) -> None:
        super().pause_writing()
        serving = self._serving
        if serving is not None and serving.on_full is not None:
            serving.on_full()

    def resume_writing(self) -> None:
        super().resume_writing()
        serving = self._serving
        if serving is not None and serving.on_writable is not None:
            serving.on_writable()

    def shutdown(self) -> None:
        super().shutdown()
        if self._serving is not None:
            self._serving.keep_alive = False

    # receiving

    def _feed_end(self, data: bytes, start: int) -> int:
        """How far the parser gets `data`: where much follows a head, only the head, for a large body goes round the parser."""
        if self._between_requests and len(data) - start >= _RAW_BODY_BYTES:
            found = data.find(b"\r\n\r\n", start)
            return found + 4 if found >= 0 else len(data)
        return len(data)

    def _feed(self, data: bytes) -> int:
        """Parse. Returns how many bytes were taken: all but those that follow a head with an offer to upgrade."""
        taken = self._fed_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserUpgrade as upgrade:
            taken = upgrade.args[0]
            if isinstance(self.cycle, _HotCycle):
                self._ignore_upgrade(self.cycle)
            elif not self._rest_bytes:
                self._end_rest()
        except httptools.HttpParserError:
            self._refuse_garbage()
            return taken
        ready = self._ready
        if ready is not None:
            self._ready = None
            self._handle(ready)
        if self._in_head:
            self._wait_for_head(len(data))
        elif not self._between_requests and isinstance(self.cycle, _HotCycle) and not self.cycle.complete:
            self._wait_for_body(self.cycle)
        return taken

    def _ignore_upgrade(self, cycle: _HotCycle) -> None:
        """An offer of another protocol is not taken up (JVM clients offer h2c with every request).

        The parser takes what follows the head for that protocol's bytes; it is the request's body.
        """
        if cycle.refusal is not None and cycle.serving:
            self._refuse(cycle, cycle.refusal)
        elif cycle.length:
            self._raw = cycle
            self.due_s = self.loop.time() + self._routes.idle_s
        else:
            self._end_raw(cycle)

    def _wait_for_head(self, size: int) -> None:
        self.due_s = self.loop.time() + self._routes.idle_s
        self._head_bytes = 0 if self._begun else self._head_bytes + size
        self._begun = False
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_endless_head()

    def _wait_for_body(self, cycle: _HotCycle) -> None:
        self.due_s = self.loop.time() + self._routes.idle_s
        if not cycle.serving:
            return
        if cycle.refusal is not None:
            self._refuse(cycle, cycle.refusal)
        elif cycle.length is not None and cycle.length - cycle.size >= _RAW_BODY_BYTES:
            self._raw = cycle

    def _receive_raw(self, cycle: _HotCycle, data: bytes, start: int) -> int:
        """Body bytes of declared length. Returns where they end."""
        assert cycle.length is not None
        end = min(start + cycle.length - cycle.size, len(data))
        cycle.size += end - start
        if cycle.refusal is None:
            cycle.pieces.append(data[start:end])
        if cycle.size == cycle.length:
            self._end_raw(cycle)
        else:
            self.due_s = self.loop.time() + self._routes.idle_s
        return end

    def _end_raw(self, cycle: _HotCycle) -> None:
        """What follows such a body starts the next request, in a new parser."""
        self._raw = None
        self._renew_parser()
        cycle.complete = True
        if cycle.serving:
            self._handle(cycle)

    def _receive_rest(self, data: bytes, start: int) -> int:
        """As `_receive_raw`, of an ordinary request."""
        end = min(start + self._rest_bytes, len(data))
        super().on_body(data[start:end])
        self._rest_bytes -= end - start
        if not self._rest_bytes:
            self._end_rest()
        return end

    def _end_rest(self) -> None:
        self._renew_parser()
        super().on_message_complete()

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._between_requests = True

    def on_message_begin(self) -> None:
        # uvicorn's scope is only built for requests that take the ordinary way.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._between_requests = False
        self._in_head = self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a chunked body's trailers come here as well; they speak for nothing
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        raw_path, _, query = self.url.partition(b"?")
        path = self._routes.paths.get(raw_path)
        parser = self.parser
        method = parser.get_method()
        fields = dict(self.headers)
        refusal: GatewayError | None = _head_too_large() if self._head_is_too_large() else None
        if (path is None or method != b"POST") and refusal is None:
            refusal = self._ordinary_fault(fields)
            if refusal is None:
                self._start_ordinary(fields)
                return
        if path is None:
            path = raw_path.decode("latin-1")
        keep_alive = parser.should_keep_alive()
        # Without a Connection field only HTTP/1.1 is kept alive; asking for the version formats a string.
        http_1_0 = (not keep_alive or b"connection" in fields) and parser.get_http_version() == "1.0"
        cycle = _HotCycle(self, method.decode("ascii"), path, query, http_1_0, keep_alive and not http_1_0)
        self._inspect(cycle, fields)
        cycle.refusal = refusal or cycle.refusal
        earlier = self.cycle
        self.cycle = cycle  # type: ignore[assignment]
        if earlier is None or earlier.response_complete:
            self._start_hot(cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]

    def _ordinary_fault(self, fields: dict[bytes, bytes]) -> GatewayError | None:
        """What uvicorn would stumble over."""
        if not _has_path(self.url):
            return BadRequest("the request's target cannot be read")
        if self.parser.should_upgrade() and b"transfer-encoding" in fields:
            return _upgrade_without_length()
        return None

    def _start_ordinary(self, fields: dict[bytes, bytes]) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url, self.headers = url, headers
        self.expect_100_continue = _expects_continue(fields)
        self._rest_bytes = int(fields.get(b"content-length", 0)) if self.parser.should_upgrade() else 0
        self.scope["headers"] = headers
        super().on_headers_complete()

    def _head_is_too_large(self) -> bool:
        if self._begun and self._fed_bytes <= _MAX_HEAD_BYTES:  # all of it came at once
            return False
        headers = self.headers
        return len(self.url) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > _MAX_HEAD_BYTES

    def _inspect(self, cycle: _HotCycle, fields: dict[bytes, bytes]) -> None:
        """Read the declared length, and refuse what will not be collected. The parser has refused ambiguous framing."""
        length = fields.get(b"content-length")
        if length is not None:
            cycle.length = int(length)
            if cycle.length > self._routes.max_body_bytes:
                cycle.refusal = BodyTooLarge.beyond(self._routes.max_body_bytes)
        if b"transfer-encoding" in fields and not _is_chunked(cycle.headers):
            cycle.refusal = BadRequest("transfer codings other than chunked are not supported")
        if self.parser.should_upgrade():
            cycle.offers_upgrade = True
            if b"transfer-encoding" in fields:
                cycle.refusal = _upgrade_without_length()
            cycle.length = cycle.length or 0
        self.expect_100_continue = _expects_continue(fields)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if not isinstance(cycle, _HotCycle):
            super().on_body(body)
        elif cycle.refusal is None:
            cycle.pieces.append(body)
            cycle.size += len(body)
            if cycle.size > self._routes.max_body_bytes:
                cycle.refusal = BodyTooLarge.beyond(self._routes.max_body_bytes)
                cycle.pieces.clear()

    def on_message_complete(self) -> None:
        if self._rest_bytes:
            return  # only the head is complete
        self._between_requests = True
        cycle = self.cycle
        if not isinstance(cycle, _HotCycle):
            super().on_message_complete()
            return
        if cycle.offers_upgrade:
            return  # only the head is complete
        cycle.complete = True
        if cycle.serving:
            self._ready = cycle

    # serving

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, _HotCycle):
            # Not at once: a client may have sent thousands of small requests in one piece.
            self.loop.call_soon(self._start_queued, cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _start_queued(self, cycle: _HotCycle) -> None:
        if not self.transport.is_closing():
            self._start_hot(cycle)
            if not cycle.complete:
                self._wait_for_body(cycle)

    def _start_hot(self, cycle: _HotCycle) -> None:
        self._serving = cycle
        cycle.serving = True
        if cycle.complete:
            self._handle(cycle)
        elif self.expect_100_continue and cycle.refusal is None and cycle.headers is self.headers:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _handle(self, cycle: _HotCycle) -> None:
        if cycle.refusal is not None:
            self._refuse(cycle, cycle.refusal)
            return
        coroutine = self._routes.dispatch(self._request(cycle))
        if coroutine is not None:
            task = self.loop.create_task(coroutine)
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _request(self, cycle: _HotCycle) -> HotRequest:
        pieces = cycle.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        cycle.pieces = []
        return HotRequest(cycle.method, cycle.path, cycle.query, cycle.headers, body, self.client, cycle)

    def _refuse(self, cycle: _HotCycle, error: GatewayError) -> None:
        self._discarding = not cycle.complete
        self._raw = None
        cycle.keep_alive = False
        cycle.complete = True
        self._routes.refuse(self._request(cycle), error)

    def _refuse_endless_head(self) -> None:
        """More than is read of a head has come, and not its end."""
        if self.cycle is not None and not self.cycle.response_complete:
            reset(self.transport)  # an earlier request is not answered yet
            return
        path = self.url.partition(b"?")[0].decode("latin-1")
        cycle = _HotCycle(self, self.parser.get_method().decode("ascii"), path, b"", http_1_0=False, keep_alive=False)
        self.cycle = cycle  # type: ignore[assignment]
        self._serving = cycle
        self._refuse(cycle, _head_too_large())

    def _refuse_garbage(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, _HotCycle) and self._serving is cycle and not cycle.complete:
            self._refuse(cycle, cycle.refusal or BadRequest("the request's body cannot be read as HTTP"))
        elif self._serving is not None or self.pipeline or self._is_answering():
            reset(self.transport)  # a 400 in the middle of another reply would only look like part of it
        else:
            if cycle is not None:
                cycle.disconnected = True  # an ordinary request whose body is broken: this is its answer
                cycle.message_event.set()
            _log.warning("request_unreadable", client=self.client[0] if self.client else "")
            self.send_400_response("Invalid HTTP request received.")

    def send_400_response(self, msg: str) -> None:
        """As an error object; the path, and with it the dialect, may be what cannot be read."""
        headers, body = render_openai_error("", BadRequest(msg))
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % header for header in headers)]
        lines += [b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        """Whether a hot request waits for its turn, or an ordinary one is complete or its reply has begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return isinstance(cycle, _HotCycle) or cycle.response_started or not cycle.more_body

    def reply_done(self) -> None:
        """The reply being served is written. (`ReplyOwner`)"""
        cycle, self._serving = self._serving, None
        if cycle is None or cycle.keep_alive:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        if self._discarding and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.due_s = self.loop.time() + self._routes.idle_s
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    # waiting

    def on_deadline(self) -> None:
        """Nothing came for `idle_s`. While a reply is being written that is as it should be. (`Due`)"""
        if self._serving is None or not self._serving.complete:
            busy = self.cycle is not None and not isinstance(self.cycle, _HotCycle) and not self.cycle.response_complete
            if not busy:
                self.transport.close()
                return
        self._deadlines.arm(self, self._routes.idle_s)


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head exceeds {_MAX_HEAD_BYTES} bytes")


def _upgrade_without_length() -> BadRequest:
    return BadRequest("a request that offers to upgrade its protocol needs a content-length")


def _has_path(target: bytes) -> bool:
    try:
        return httptools.parse_url(target).path is not None
    except httptools.HttpParserInvalidURLError:
        return False


def _is_chunked(headers: list[tuple[bytes, bytes]]) -> bool:
    return all(value.lower() == b"chunked" for name, value in headers if name == b"transfer-encoding")


def _expects_continue(fields: dict[bytes, bytes]) -> bool:
    return b"expect" in fields and fields[b"expect"].lower() == b"100-continue"
