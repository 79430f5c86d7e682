"""Running one emulated worker: sockets, event loop, and an end that comes quickly when asked."""

from __future__ import annotations

import asyncio
import signal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.wire.bootstrap import BootstrapApp
from engine_adapters.emulator.wire.http import TRANSPORT_KEY
from engine_adapters.emulator.worker.worker import Worker


class EmulatorProtocol(HttpToolsProtocol):
    """uvicorn's protocol, lending its transport to faults that close the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT_KEY] = self.transport  # type: ignore[literal-required]


async def serve(worker: Worker) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = worker.options
    await worker.start()
    servers = [_server(EmulatorApp(worker), options.host, options.port)]
    if options.params.role is EngineRole.PREFILL:
        servers.append(_server(BootstrapApp(worker), options.host, options.bootstrap_port))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, servers)
    try:
        await _serve_all(servers)
    finally:
        await worker.stop()


async def _serve_all(servers: list[_Server]) -> None:
    """Until the first of them ends; the others end with it."""
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    _stop(servers)
    await asyncio.gather(*tasks)


def _stop(servers: list[_Server]) -> None:
    for server in servers:
        server.should_exit = True
        server.force_exit = True


def _server(app: EmulatorApp | BootstrapApp, host: str, port: int) -> _Server:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=EmulatorProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Signals are handled by the loop, so that the exit code stays 0."""

    def install_signal_handlers(self) -> None:
        return
