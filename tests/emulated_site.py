"""What a stage of a gateway before emulated engines is made of, all in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from loop_server import listening

from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.emulator.worker.worker import Worker
from engine_adapters.launch.ports import free_ports
from router.app import build_app, build_routes
from router.gateway import Gateway
from router.wire.serve import build_server

MODEL_DIR = Path(__file__).parents[1] / "configs" / "models" / "tiny-agent"
MODEL = "tiny"
DEADLINE_S = 15.0


@asynccontextmanager
async def emulated_engine(params: EngineParams, style: ReplyStyle, ports: tuple[int, int]) -> AsyncIterator[tuple[Worker, str]]:
    """The worker and its URL. `ports` to choose those of its events from."""
    port, kv_port, replay_port = free_ports(3, *ports)
    worker = Worker(WorkerOptions(port, kv_port=kv_port, kv_replay_port=replay_port, params=params, style=style))
    await worker.start()
    try:
        async with listening(EmulatorApp(worker)) as http_port:
            yield worker, f"http://127.0.0.1:{http_port}"
    finally:
        await worker.stop()


@asynccontextmanager
async def gateway_client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Of a gateway that serves and has discovered its engines."""
    routes = build_routes(gateway)
    server = build_server(build_app(gateway, routes), routes, port=0, drain_s=1.0, lifespan="on")
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or serving.done(), "server started")
        await until(lambda: all(worker.info for worker in gateway.fleet.workers), "engines discovered")
        base = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=base, timeout=DEADLINE_S, trust_env=False) as http:
            yield http
    finally:
        server.stop()
        await serving


async def until(fact: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110  facts lie in several objects
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {DEADLINE_S:g} s") from None
