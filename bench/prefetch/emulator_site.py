"""One emulated worker with a host tier that is slow to load back from. Another session displaces the thread while it idles; a
warm request brings it back. Its timings are parameters: it shows the mechanism, not what an accelerator would gain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from bench.prefetch.gateway_here import GatewayHere
from bench.prefetch.site import SiteFailed
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.server import EmulatorProtocol
from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.emulator.worker.worker import Worker
from engine_adapters.launch.ports import free_ports

_PARAMS = EngineParams(
    page_tokens=16,
    kv_tokens=14_000,
    host_kv_tokens=131_072,
    context_tokens=12_000,
    kv_bytes_per_token=131_072,
    prefill_ms_per_token=0.2,
    load_back_bytes_per_ms=1.0e6,
)
_OTHER_WORDS = 3_000


class EmulatorSite:
    min_saved_ms = 5.0
    agents: list[dict[str, Any]] = []
    model = "tiny-agent"

    def __init__(self, worker: Worker, url: str, model_dir: Path) -> None:
        self._worker = worker
        self.pool: dict[str, Any] = {
            "models": [self.model],
            "unified": [{"url": url, "name": "u0"}],
            "prompt": {"model_dir": str(model_dir), "cold_deadline_ms": 0},
            "hardware": {
                "kv_bytes_per_token": _PARAMS.kv_bytes_per_token,
                "prefill_ms_per_token": _PARAMS.prefill_ms_per_token,
                "l2_link": {"gb_per_s": _PARAMS.load_back_bytes_per_ms / 1e6},
            },
        }

    async def reset(self) -> None:
        if not await self._worker.flush(10.0):
            raise SiteFailed("the emulated worker does not come to rest")

    async def place(self, gateway: GatewayHere) -> None:
        """There is one place."""

    async def part(self, gateway: GatewayHere) -> None:
        """Another session's prompt takes its room on the device."""
        other = " ".join(f"other{number}" for number in range(_OTHER_WORDS))
        await gateway.ask([{"role": "user", "content": other}], "other", max_tokens=1)


@asynccontextmanager
async def emulator_site(model_dir: Path) -> AsyncIterator[EmulatorSite]:
    port, kv_port, replay_port = free_ports(3)
    style = ReplyStyle(tool_rounds=3)
    worker = Worker(WorkerOptions(port, kv_port=kv_port, kv_replay_port=replay_port, params=_PARAMS, style=style))
    await worker.start()
    config = uvicorn.Config(
        EmulatorApp(worker), port=port, http=EmulatorProtocol, ws="none", lifespan="off", log_level="critical"
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)
        yield EmulatorSite(worker, f"http://127.0.0.1:{port}", model_dir)
    finally:
        server.should_exit = server.force_exit = True
        await serving
        await worker.stop()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command's own
