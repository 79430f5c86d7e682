"""Run an application with its hot routes: uvicorn on uvloop, and a shutdown that finishes what is being answered.

SIGTERM or SIGINT: stop accepting, close idle connections, let replies finish for `drain_s`, break what is left, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
from collections.abc import Callable, Iterator
from socket import socket
from types import FrameType
from typing import Any, cast

import uvicorn

from router.wire.asgi import AsgiApp, HotAsgi
from router.wire.routes import HotRoutes
from router.wire.server import HotProtocol
from router.wire.sockets import reset

_BACKLOG = 4096


class DrainingServer(uvicorn.Server):
    """uvicorn's server, except that a signal ends in a normal return and that nothing outlives the drain."""

    on_started: Callable[[], None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for. Only once started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            reset(connection.transport)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, without raising the signal again at the end: a drained process exits with 0."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in signals:
                loop.add_signal_handler(number, self.handle_exit, number, None)
        except (ValueError, RuntimeError, NotImplementedError):
            # Not the main thread (tests), or no signals here: the owner sets `should_exit`.
            yield
            return
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A second signal of either kind gives up waiting.
        self.force_exit = self.should_exit
        self.should_exit = True


def build_server(
    app: AsgiApp,
    routes: HotRoutes,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    drain_s: float = 30.0,
    lifespan: str = "auto",
    log_level: str = "warning",
    tls: dict[str, Any] | None = None,
) -> DrainingServer:
    """A server to `await server.serve()` on the running loop. `tls`: uvicorn's `ssl_*` settings."""
    config = uvicorn.Config(
        cast("Any", HotAsgi(app, routes)),  # odd request targets reach hot paths through here
        host=host,
        port=port,
        http=cast("Any", functools.partial(HotProtocol, routes=routes)),
        ws="none",
        lifespan=cast("Any", lifespan),
        log_config=None,
        log_level=log_level,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(drain_s)),
        **(tls or {}),
    )
    return DrainingServer(config)


def run(server: DrainingServer) -> None:
    """Serve until a signal, on uvloop. What exists by now leaves garbage collection: it lives as long as the process."""
    import uvloop

    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())
