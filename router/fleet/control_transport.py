"""httpx on connections like the byte path's: for control traffic, which polls every worker each second.

A poll costs a third of what it does on httpx's own transport. Whole replies only, of bounded size.
"""

from __future__ import annotations

import asyncio

import httpx

from router.errors import EngineError, EngineTimeout, StaleConnection
from router.wire.exchange import Exchange
from router.wire.head import Header, build_head
from router.wire.origin import Origin
from router.wire.upstream import UpstreamPool

_MAX_REPLY_BYTES = 64 * 1024 * 1024
_DEFAULT_TIMEOUT_S = 5.0


class PooledTransport(httpx.AsyncBaseTransport):
    """Requests and replies without streaming. Closing it leaves the pool open: that belongs to whoever made it."""

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self._origins: dict[tuple[bytes, bytes, int | None], Origin] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.TimeoutException or httpx.TransportError."""
        reply = await self._exchange(request)
        if isinstance(reply.error, StaleConnection):  # the engine was closing the pooled connection
            reply = await self._exchange(request)
        if isinstance(reply.error, EngineTimeout):
            raise httpx.ReadTimeout(reply.error.message, request=request)
        if reply.error is not None:
            raise httpx.NetworkError(reply.error.message, request=request)
        return httpx.Response(reply.status, headers=reply.headers, content=b"".join(reply.pieces))

    async def _exchange(self, request: httpx.Request) -> _Reply:
        origin = self._origin(request.url)
        body = await request.aread()
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        has_body = bool(body) or request.method == "POST"
        head = build_head(
            request.method.encode(),
            request.url.raw_path,
            origin.authority.encode(),
            headers,
            len(body) if has_body else None,
            drop=(b"accept-encoding",),  # replies are read as they come
        )
        timeout_s = (request.extensions.get("timeout") or {}).get("read") or _DEFAULT_TIMEOUT_S
        reply = _Reply()
        reply.exchange = self._pool.start(
            origin, head, (body,) if body else (), reply, first_byte_timeout_s=timeout_s, idle_timeout_s=timeout_s
        )
        try:
            await reply.over
        finally:
            reply.exchange.abort()
        return reply

    def _origin(self, url: httpx.URL) -> Origin:
        key = (url.raw_scheme, url.raw_host, url.port)
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = Origin.parse(f"{url.scheme}://{url.netloc.decode()}")
        return origin


class _Reply:
    """Collects one reply. `over` resolves once it is complete or has failed."""

    exchange: Exchange

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: list[Header] = []
        self.pieces: list[bytes] = []
        self.error: EngineError | None = None
        self._size = 0

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)
        self._size += len(data)
        if self._size > _MAX_REPLY_BYTES:
            self.exchange.abort()
            self.on_error(EngineError(f"a control reply exceeds {_MAX_REPLY_BYTES} bytes"))

    def on_end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def on_error(self, error: EngineError) -> None:
        self.error = error
        self.on_end()
