"""Run an application with its hot routes: uvicorn on uvloop, and a shutdown that finishes what is being answered.

SIGTERM or SIGINT: stop accepting, close idle connections, let replies finish, break what is left, exit 0, all within `drain_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from socket import socket
from typing import Any, cast

import uvicorn

from kvtier.agent.file_limit import raise_file_limit
from router.wire.asgi import AsgiApp, HotAsgi
from router.wire.process import keep_freed_pages
from router.wire.routes import HotRoutes
from router.wire.server import HotProtocol
from router.wire.sockets import reset

_BACKLOG = 4096
_TICK_S = 1.0
_DRAIN_POLL_S = 0.02
_CLOSING_S = 2.0  # engines are told what was broken off; at most a tenth of the whole time


class DrainingServer(uvicorn.Server):
    """uvicorn's server, except that it wakes when told to stop, that a signal ends in a normal return, and how it drains."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain_s: float,
        on_started: Callable[[], None] | None = None,
        before_break: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_started = on_started
        self._before_break = before_break
        self._stopping = asyncio.Event()
        self._break_at_s = float("inf")  # monotonic; set when told to stop

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for. Only once started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Begin the drain; a second call breaks it off."""
        self.force_exit = self.should_exit
        if not self.should_exit:
            self._break_at_s = time.monotonic() + replies_run_s(self._drain_s)
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_started is not None:
            self._on_started()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # also renews the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await self._drained()
        if self._before_break is not None:
            self._before_break()
        for connection in list(state.connections):
            reset(connection.transport)
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await self.lifespan.shutdown()

    async def _drained(self) -> None:
        while self.server_state.connections or self.server_state.tasks:
            left_s = self._break_at_s - time.monotonic()
            if self.force_exit or left_s <= 0:
                return
            await asyncio.sleep(min(_DRAIN_POLL_S, left_s))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread():
            yield  # the owner calls `stop`
            return
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def replies_run_s(drain_s: float) -> float:
    """How long replies may still run, so that the process has ended after `drain_s`: whoever sent the signal kills it then."""
    return drain_s - min(_CLOSING_S, drain_s / 10)


def build_server(
    app: AsgiApp,
    routes: HotRoutes,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    drain_s: float = 30.0,
    lifespan: str = "auto",
    log_level: str = "warning",
    on_started: Callable[[], None] | None = None,
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
        **(tls or {}),
    )
    return DrainingServer(config, drain_s, on_started, routes.before_break)


def run(server: DrainingServer) -> None:
    """Serve until a signal, on uvloop. What exists by now leaves garbage collection: it lives as long as the process."""
    import uvloop

    keep_freed_pages()
    raise_file_limit()
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())
