"""Real SGLang 2P1D on this machine's CPU: each prefill server has a node agent of its own as its L3, and the first agent is
reached through a slow link. While a thread idles its prefill server is drained, so that its next turn runs where nothing of it
lies.

Times are of a CPU and a tiny model: they compare one arm with the other and say nothing of an accelerator.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from bench.prefetch.gateway_here import GatewayHere
from bench.prefetch.site import SiteFailed
from bench.prefetch.slow_link import slow_link
from bench.reach.arms import attached
from bench.reach.node import NodeAgent
from costmodel.values import Role
from engine_adapters.base import AdapterError, Endpoint
from engine_adapters.launch.pool import READY_DEADLINE_S, READY_PATH, pool_specs
from engine_adapters.launch.process import EngineProcess
from engine_adapters.launch.sglang import SglangSpec, start_sglang
from engine_adapters.sglang.adapter import SglangAdapter
from engine_adapters.sglang_storage.plugin import write_plugin
from router.fleet.worker import WorkerState

_TOKEN_BYTES = 1024  # tiny-agent: 2 layers, K and V, 2 heads of 64, bfloat16
_AGENT_BYTES = 160 << 20
_L1_TOKENS = 65_536
_NODES = ("a", "b")
_MODEL = "tiny-agent"


class SglangSite:
    model = _MODEL
    min_saved_ms = 5.0

    def __init__(
        self, specs: Sequence[SglangSpec], agents: Sequence[NodeAgent], ports: Sequence[int], link_bytes_per_s: float
    ) -> None:
        """`ports`: where the agents of both nodes are reached."""
        self._specs = specs
        self._agents = agents
        first, second, decode = specs
        self.agents = [{"node": node, "host": "127.0.0.1", "port": port} for node, port in zip(_NODES, ports, strict=True)]
        self.pool: dict[str, Any] = {
            "models": [_MODEL],
            "prefill": [
                {"url": spec.url, "name": name, "node": node} for spec, name, node in ((first, "p0", "a"), (second, "p1", "b"))
            ],
            "decode": [{"url": decode.url, "name": "d0"}],
            "prompt": {"model_dir": str(first.model_dir), "cold_deadline_ms": 0},
            "hardware": {
                "kv_bytes_per_token": _TOKEN_BYTES,
                "prefill_ms_per_token": 1.0,
                "l3_link": {"gb_per_s": link_bytes_per_s / 1e9},
            },
        }

    async def reset(self) -> None:
        """Engines first: what they still store must not come behind."""
        async with httpx.AsyncClient(trust_env=False) as http:
            for spec in self._specs:
                try:
                    await SglangAdapter().flush_cache(http, Endpoint(spec.url), 30.0)
                except AdapterError as error:
                    raise SiteFailed(str(error)) from error
        for agent in self._agents:
            await agent.settled()
            await agent.clear()

    async def place(self, gateway: GatewayHere) -> None:
        """The first turn runs on p0."""
        gateway.gateway.fleet.drain("p1")

    async def part(self, gateway: GatewayHere) -> None:
        """p0 is drained; all that it computed lies with its agent."""
        await self._agents[0].settled()
        fleet = gateway.gateway.fleet
        fleet.find("p1")[1].state = WorkerState.READY
        fleet.drain("p0")


@asynccontextmanager
async def sglang_site(model_dir: Path, link_bytes_per_s: float) -> AsyncIterator[SglangSite]:
    """Takes minutes to start and 5 GB. Raises what launching raises; nothing is left running."""
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="loadback-prefetch-")))
        agents = [await _agent(exits, folder, node) for node in _NODES]
        _, port = await exits.enter_async_context(slow_link(agents[0].peer.port, link_bytes_per_s))
        specs = _specs(model_dir, folder, agents)
        servers: list[EngineProcess] = []
        exits.push_async_callback(_stop, servers)
        for spec in specs:
            servers.append(await start_sglang(spec, folder))  # noqa: PERF401  a later failure must find the earlier ones
        await asyncio.gather(*(server.ready(READY_PATH, READY_DEADLINE_S) for server in servers))
        yield SglangSite(specs, agents, (port, agents[1].peer.port), link_bytes_per_s)


def _specs(model_dir: Path, folder: Path, agents: Sequence[NodeAgent]) -> list[SglangSpec]:
    plugin = write_plugin(folder / "loadback_sglang.zip")
    template = SglangSpec(model_dir, 0, 0, 0, kv_tokens=_L1_TOKENS, python_path=(plugin,))
    specs = pool_specs(template, [Role.PREFILL, Role.PREFILL, Role.DECODE])
    prefills = [replace(spec, host_tier_flags=attached(agent)) for spec, agent in zip(specs, agents, strict=False)]
    return [*prefills, specs[-1]]


async def _agent(exits: AsyncExitStack, folder: Path, node: str) -> NodeAgent:
    agent = NodeAgent(folder, dram_bytes=_AGENT_BYTES, node=node, peers=True)
    await agent.start()
    exits.push_async_callback(agent.stop)
    return agent


async def _stop(servers: list[EngineProcess]) -> None:
    await asyncio.gather(*(server.stop() for server in servers))
