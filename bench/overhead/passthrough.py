"""The least that a router built from `router.wire` can do: round robin, no decision, bytes relayed. The floor of all figures.

Run as `python -m bench.overhead.passthrough PORT [--asgi] http://127.0.0.1:21001 ...`; `--asgi` takes the plain ASGI
twin of the hot protocol, to see what the protocol is worth.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from router.errors import EngineError
from router.wire.asgi import AsgiApp, HotAsgi
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

    def on_end(self) -> None:
        self._downstream.finish()

    def on_error(self, error: EngineError) -> None:
        if self._downstream.started:
            self._downstream.abort()
        else:
            self._downstream.respond(error.status, *render_openai_error(self._path, error))


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
        request.downstream.on_full = exchange.pause_reading
        request.downstream.on_writable = exchange.resume_reading

    async def close(self) -> None:
        await self._pool.close()


def ordinary_app() -> AsgiApp:
    """404 to everything."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return app


def main() -> None:
    port, *urls = sys.argv[1:]
    plain = "--asgi" in urls
    handle = PassThrough([Origin.parse(url) for url in urls if url != "--asgi"]).handle
    routes = HotRoutes(handle, _PATHS)
    app = HotAsgi(ordinary_app(), routes) if plain else ordinary_app()
    run(build_server(app, HotRoutes(handle, ()) if plain else routes, port=int(port), lifespan="off"))


if __name__ == "__main__":
    main()
