"""Real SGLang 2P1D on this machine's CPU, both prefill servers with one node agent behind them as L3, one of them slow.

The slow one is a whole server stopped (SIGSTOP) for a part of every period: slower in all that it does, as one on a throttled
or shared machine is, and no router is told. Chunks are small because torch's own attention pads every chunk's queries to the
whole prompt: only so does computing a prompt cost several times what restoring it does, as on accelerators. The scheduler does
not overlap with the forward, since on a CPU nothing runs beside that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import msgspec

from bench.reach.arms import attached
from bench.reach.node import NodeAgent
from engine_adapters.base import Endpoint
from engine_adapters.launch.pool import Pool, launch_pd_pool
from engine_adapters.launch.sglang import SglangSpec
from engine_adapters.sglang.adapter import SglangAdapter
from engine_adapters.sglang_storage.plugin import write_plugin
from kvtier.wire.messages import Peer

NODE = "a"
SLOW = 1  # which prefill server
_FLUSH_S = 30.0
_TOKEN_BYTES = 1024  # tiny-agent: 2 layers, K and V, 2 heads of 64, bfloat16


class Sizes(msgspec.Struct, frozen=True):
    """In tokens, of a prefill server; L3 is shared. `slow_share` of each period the slow server stands still."""

    l1_tokens: int = 16_384
    l2_tokens: int = 32_768
    l3_tokens: int = 131_072
    chunk_tokens: int = 256
    slow_period_s: float = 0.04
    slow_share: float = 0.5


class Site:
    """`url` of engines and where their agent is reached. Owned by `real_site`."""

    def __init__(self, pool: Pool, agent: NodeAgent, http: httpx.AsyncClient) -> None:
        self.pool = pool
        self.http = http
        self._agent = agent

    @property
    def peer(self) -> Peer:
        return self._agent.peer

    async def reset(self) -> None:
        """Every tier is empty. Engines first: what they still store must not come behind. Raises `AdapterError`."""
        for server in self.pool.servers:
            await SglangAdapter().flush_cache(self.http, Endpoint(server.url), _FLUSH_S)
        await self._agent.settled()
        await self._agent.clear()


@asynccontextmanager
async def real_site(sizes: Sizes, model_dir: Path) -> AsyncIterator[Site]:
    """Takes a minute to start and 5 GB. Raises what launching raises; nothing is left running."""
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="loadback-placement-")))
        agent = NodeAgent(folder, dram_bytes=sizes.l3_tokens * _TOKEN_BYTES, node=NODE, peers=True)
        await agent.start()
        exits.push_async_callback(agent.stop)
        pool = await exits.enter_async_context(launch_pd_pool(model_dir, folder, base=_spec(sizes, model_dir, agent, folder)))
        http = await exits.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=_FLUSH_S * 2))
        yield Site(pool, agent, http)


@asynccontextmanager
async def slowed(site: Site, sizes: Sizes) -> AsyncIterator[None]:
    """While it is open the slow server is slow; it runs again afterwards, whatever happens."""
    group = site.pool.prefills[SLOW].process.pid
    throttling = asyncio.create_task(_throttle(group, sizes.slow_period_s, sizes.slow_share))
    try:
        yield
    finally:
        throttling.cancel()
        with suppress(asyncio.CancelledError):
            await throttling


async def _throttle(group: int, period_s: float, share: float) -> None:
    try:
        while True:
            os.killpg(group, signal.SIGSTOP)
            await asyncio.sleep(period_s * share)
            os.killpg(group, signal.SIGCONT)
            await asyncio.sleep(period_s * (1 - share))
    finally:
        os.killpg(group, signal.SIGCONT)


def _spec(sizes: Sizes, model_dir: Path, agent: NodeAgent, folder: Path) -> SglangSpec:
    ratio = ("--hicache-ratio", f"{sizes.l2_tokens / sizes.l1_tokens:g}")
    return SglangSpec(
        model_dir, 0, 0, 0, kv_tokens=sizes.l1_tokens, chunk_tokens=sizes.chunk_tokens,
        extra_flags=("--disable-overlap-schedule",), host_tier_flags=(*ratio, *attached(agent)),
        python_path=(write_plugin(folder / "loadback_sglang.zip"),),
    )  # fmt: skip
