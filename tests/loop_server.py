"""uvicorn inside a test's own loop, up and down at once: its own server looks only ten times a second whether it should end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from engine_adapters.emulator.server import EmulatorProtocol

_END_S = 15.0


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    """Serve an emulator's application on a loopback port of its own. It ends as a process does: connections are cut."""
    with socket.socket(proto=socket.IPPROTO_TCP) as bound:  # asyncio sets TCP_NODELAY where the protocol is named
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=EmulatorProtocol, lifespan="off", ws="none", log_level="critical")
        server = _LoopServer(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await server.up.wait()
            yield bound.getsockname()[1]
        finally:
            server.down.set()
            await serving


class _LoopServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.down = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.down.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for bound in sockets or []:
            bound.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        async with asyncio.timeout(_END_S):
            await asyncio.gather(*self.server_state.tasks, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the test's own loop keeps its signals
