"""The least that a router built from `router.wire` can do: round robin, no decision, bytes relayed. The floor of all figures.

python -m bench.overhead.passthrough PORT http://127.0.0.1:21001 ...
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from router.errors import EngineError, GatewayError
from router.wire.asgi import AsgiApp
from router.wire.exchange import Exchange
from router.wire.head import Header, build_head, end_to_end
from router.wire.origin import Origin
from router.wire.request import HotRequest, render_openai_error
from router.wire.routes import HotRoutes
from router.wire.serve import build_server, run
from router.wire.upstream import UpstreamPool

_PATHS = ("/v1/chat/completions", "/v1/completions")


class Relay:
    """One reply on its way from an engine to a client, with back-pressure and disconnects passed on."""

    __slots__ = ("_downstream", "_path", "exchange")

    def __init__(self, request: HotRequest) -> None:
        self._downstream = request.downstream
        self._path = request.path
        self.exchange: Exchange

    def on_head(self, status: int, headers: list[Header]) -> None:
        self._downstream.start(status, end_to_end(headers))

    def on_body(self, data: bytes) -> None:
        self._downstream.write(data)
        if not self._downstream.writable:
            self.exchange.pause_reading()

    def on_end(self) -> None:
        self._downstream.finish()

    def on_error(self, error: EngineError) -> None:
        if self._downstream.started:
            self._downstream.abort()
        else:
            self._downstream.respond(error.status, *_error(self._path, error))


class PassThrough:
    def __init__(self, origins: list[Origin]) -> None:
        self._pool = UpstreamPool()
        self._next = itertools.cycle([(origin, origin.authority.encode()) for origin in origins])

    def handle(self, request: HotRequest) -> None:
        origin, host = next(self._next)
        head = build_head(b"POST", request.path.encode(), host, request.headers, len(request.body))
        relay = Relay(request)
        relay.exchange = exchange = self._pool.start(
            origin, head, (request.body,), relay, first_byte_timeout_s=600.0, idle_timeout_s=300.0
        )
        request.downstream.on_disconnect = exchange.abort
        request.downstream.on_writable = exchange.resume_reading

    async def close(self) -> None:
        await self._pool.close()


def _error(path: str, error: GatewayError) -> tuple[list[Header], bytes]:
    return render_openai_error(path, error)


def ordinary_app() -> AsgiApp:
    """404 to everything."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return app


def main() -> None:
    port, urls = int(sys.argv[1]), sys.argv[2:]
    routes = HotRoutes(PassThrough([Origin.parse(url) for url in urls]).handle, _PATHS)
    run(build_server(ordinary_app(), routes, port=port, lifespan="off"))


if __name__ == "__main__":
    main()
