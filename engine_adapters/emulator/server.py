"""Running one emulated worker: sockets, event loop, and an end that comes quickly when asked."""

from __future__ import annotations

import asyncio
import signal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.wire.http import TRANSPORT_KEY
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.emulator.worker.worker import Worker

_STOP_S = 1.0


class EmulatorProtocol(HttpToolsProtocol):
    """uvicorn's protocol, lending its transport to faults that close the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT_KEY] = self.transport  # type: ignore[literal-required]


async def serve(options: WorkerOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError when a port is taken."""
    worker = Worker(options)
    config = uvicorn.Config(
        EmulatorApp(worker),
        host=options.host,
        port=options.port,
        http=EmulatorProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    await worker.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve()
    finally:
        await worker.stop()


class _Server(uvicorn.Server):
    """Signals are handled by the loop, so that the exit code stays 0."""

    def install_signal_handlers(self) -> None:
        return

    def stop(self) -> None:
        self.should_exit = True
        self.force_exit = True
