"""A gateway that prefetches, in front of emulated workers, with node agents beside them, all in the test's own loop."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
from emulated_site import DEADLINE_S, MODEL, MODEL_DIR, emulated_engine, gateway_client, until

from costmodel.values import Tier
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.worker.worker import Worker
from kvtier.agent.agent import Agent
from kvtier.hashing.sglang import Chain, event_id
from kvtier.page.key import PageKeys
from kvtier.page.space import PageSpace
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway

sys.path.insert(0, str(Path(__file__).parents[2] / "kvtier" / "agent"))
from agent_rig import EngineMemory, agent_here, client_of, config_of, peer_of

PAGE = 16
PAGE_BYTES = 32_768
PORTS = (19_900, 19_999)
SPACE = PageSpace(model=MODEL, kv_dtype="bfloat16", layout="page_first", page_tokens=PAGE)
Json = dict[str, Any]
EAGER = {
    "mode": "enabled",
    "min_saved_ms": 0.0,
    "cost_margin": 1e-9,
    "first_check_s": 0.01,
    "warm_hold_s": 60.0,
    "min_probability": 0.3,
    "warm_min_probability": 0.3,
}


@dataclass(slots=True)
class Stage:
    gateway: Gateway
    engines: list[Worker]
    http: httpx.AsyncClient
    agents: dict[str, Agent]
    agent_configs: dict[str, Json]

    async def ask(self, **body: Any) -> Json:
        reply = await self.http.post("/v1/kv/prefetch", json=body)
        assert reply.status_code == 202, reply.text
        return dict(reply.json())

    async def look(self, handle: str) -> Json:
        return dict((await self.http.get(f"/v1/kv/prefetch/{handle}")).json())

    async def until_state(self, handle: str, *states: str) -> Json:
        async with asyncio.timeout(DEADLINE_S):
            while (seen := await self.look(handle))["state"] not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return seen

    async def put(self, node: str, ids: Sequence[int]) -> bytes:
        """Store the prompt's pages at a node's agent, and wait until the index has heard of them; their digests, joined."""
        digests = digests_of(ids)
        count = len(digests) // 32
        client = client_of(self.agent_configs[node], SPACE)
        memory = EngineMemory(range(count))
        stored = await asyncio.to_thread(client.put, digests, memory.pages)
        assert all(stored)
        await asyncio.to_thread(client.close)
        hashes = [event_id(digests[at : at + 32]) for at in range(0, len(digests), 32)]
        await until(lambda: node in self.sources(hashes), "index heard")
        return digests

    def sources(self, hashes: Sequence[int]) -> set[str]:
        """Nodes that hold some of these blocks for some worker."""
        matches = self.gateway.fleet.pools["default"].blocks.match(hashes, 0.0)
        return {run.source for match in matches.values() for run in match.runs}

    def tiers(self, thread: str) -> set[Tier]:
        """Where its blocks lie for some worker, as the gateway has heard."""
        known = self.gateway.threads.get(thread)
        assert known is not None
        matches = self.gateway.fleet.pools["default"].blocks.match(known.blocks, 0.0)
        return {run.tier for match in matches.values() for run in match.runs}

    def leading(self, node: str, digests: bytes) -> int:
        """Pages in a node's DRAM."""
        store = self.agents[node].store
        return store.leading(PageKeys(store.meet(SPACE), digests), 0.0).dram

    def pinned(self, node: str) -> int:
        return self.agents[node].store.pinned_bytes


def digests_of(ids: Sequence[int]) -> bytes:
    return b"".join(Chain(PAGE).extend_digests(array("I", ids))[1])


def talk(topic: str, lines: int = 200) -> list[dict[str, Any]]:
    return [{"role": "system", "content": f"On {topic}. " * lines}, {"role": "user", "content": f"What of {topic}?"}]


async def turn(
    stage: Stage, messages: list[dict[str, Any]], key: str = "mine", headers: dict[str, str] | None = None, **more: Any
) -> str:
    """Its thread; `headers` in place of a session's key, `more` of a body."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, **more}
    reply = await stage.http.post("/v1/chat/completions", json=body, headers=headers or {"x-session-id": key})
    assert reply.status_code == 200, reply.text
    await until(lambda: not stage.gateway.extender.busy, "prompt made")
    return reply.headers["x-loadback-thread"]


async def nothing_left(stage: Stage) -> None:
    """At the gateway, and at every agent: no lease, no pin, no write, nothing held, nothing running."""
    prefetcher = stage.gateway.prefetch.prefetcher
    await until(lambda: prefetcher.planner.board.budgets.idle and not prefetcher.executor.running, "moves over")
    for node, agent in stage.agents.items():
        await until(lambda agent=agent: not agent.stager._tasks, f"stages of {node} over")
        for number in ("leases", "pinned_bytes", "writes_open"):
            await until(lambda agent=agent, number=number: not agent.numbers()[number], f"{number} of {node} given back")
        stager = agent.stager
        await until(lambda stager=stager: not any(job.gathering.held for job in stager._jobs.values()), f"{node} holds nothing")
        assert not agent.numbers()["stage_crashes"] + agent.numbers()["fetch_crashes"]
    assert (prefetcher.crashes, prefetcher.executor.crashes, prefetcher.executor.leases) == (0, 0, 0)


@asynccontextmanager
async def prefetch_stage(
    folder: Path,
    *,
    nodes: Sequence[str] = ("a", "b"),
    params: EngineParams | None = None,
    prefetch: Json | None = None,
    l2_gb_per_s: float = 0.001,
    token_bytes: float | None = PAGE_BYTES / PAGE,
    ssd: bool = False,
) -> AsyncIterator[Stage]:
    """One worker a node, `u-a` on `a`; every node has an agent, and every worker reads from the pool. `l2_gb_per_s`: so little
    that a load-back is worth sparing."""
    async with AsyncExitStack() as exits:
        configs = {node: config_of(folder, node, pool_mib=16, ssd={} if ssd else None) for node in nodes}
        agents = {node: await exits.enter_async_context(agent_here(config)) for node, config in configs.items()}
        for agent in agents.values():
            agent.store.meet(SPACE)  # as an engine that is attached would have done
        engines = [
            await exits.enter_async_context(emulated_engine(params or _PARAMS, ReplyStyle(tool_rounds=1), PORTS)) for _ in nodes
        ]
        pool = {
            "unified": [{"url": url, "name": f"u-{node}", "node": node} for (_, url), node in zip(engines, nodes, strict=True)],
            "prompt": {"model_dir": str(MODEL_DIR), "cold_deadline_ms": 0},
            "models": [MODEL],
            "hardware": {
                **({"kv_bytes_per_token": token_bytes} if token_bytes else {}),
                "prefill_ms_per_token": 1.0,
                "l2_link": {"gb_per_s": l2_gb_per_s},
            },
        }
        peers = [{"node": node, "host": "127.0.0.1", "port": peer_of(agent).port} for node, agent in agents.items()]
        polls = {"discover_s": 0.02, "loads_ms": 60_000}
        tree = {"polls": polls, "seed": 1, "pools": [pool], "agents": peers, "prefetch": EAGER | (prefetch or {})}
        gateway = Gateway(Config.model_validate(tree), system_clock, Random(1))
        http = await exits.enter_async_context(gateway_client(gateway))
        view = gateway.prefetch.prefetcher
        await until(lambda: all(view._links.node(node).up for node in nodes), "agents found")
        followers = gateway.tiers.followers
        for follower in followers._followers:
            follower._looked_ms = float("-inf")  # only now is it known which spaces the workers have
        await until(lambda: all(status.live and status.spaces for status in followers.status()), "agents followed")
        yield Stage(gateway, [worker for worker, _ in engines], http, agents, configs)


_PARAMS = EngineParams(speed=1000.0, kv_tokens=65_536, context_tokens=32_768, page_tokens=PAGE)
