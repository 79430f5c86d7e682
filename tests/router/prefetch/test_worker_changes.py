"""Workers that come, drain, come back empty or are taken out, as the planner hears of them; and agents that do not answer."""

from __future__ import annotations

import asyncio
from random import Random

from costmodel.values import WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.prefetch import events as ev
from router.config.tree import Config
from router.fleet.worker import WorkerState
from router.gateway import Gateway
from router.prefetch.node_agents import Look

TREE = {
    "pools": [{"models": ["m"], "unified": [{"url": f"http://127.0.0.1:{port}", "name": f"u{port}"} for port in (1, 2)]}],
    "prefetch": {"mode": "enabled"},
}
U1, U2 = WorkerKey("u1"), WorkerKey("u2")


async def test_each_change_is_told_once() -> None:
    gateway = Gateway(Config.model_validate(TREE), lambda: 1000.0, Random(1))
    prefetcher = gateway.prefetch.prefetcher
    told: list[ev.Event] = []
    prefetcher.tell = told.append  # type: ignore[method-assign]

    def heard() -> list[ev.Event]:
        told.clear()
        prefetcher._look_at_workers()
        return list(told)

    one, two = gateway.fleet.workers
    assert heard() == []
    for worker in (one, two):
        worker.discovered(EngineInfo("sglang test", ("m",), page_size=16))
    assert heard() == [ev.ScaledOut(U1), ev.ScaledOut(U2)]
    assert heard() == []
    one.state = WorkerState.DOWN
    assert heard() == []
    one.discovered(EngineInfo("sglang test", ("m",), page_size=16))
    assert heard() == [ev.EngineRestarted(U1)]
    gateway.fleet.drain("u1")
    assert heard() == [ev.Drained(U1)]
    gateway.fleet.remove("u2")
    assert heard() == [ev.Drained(U2)]
    assert heard() == []
    await gateway.close()


async def test_an_agent_that_says_nothing_keeps_nobody_from_being_looked_at() -> None:
    peers = [{"node": node, "host": "127.0.0.1", "port": 1} for node in ("silent", "well")]
    gateway = Gateway(Config.model_validate({**TREE, "agents": peers}), lambda: 1000.0, Random(1))
    prefetcher, answered = gateway.prefetch.prefetcher, asyncio.Event()

    async def look(node: str) -> Look:
        if node == "silent":
            await asyncio.Event().wait()
        answered.set()
        return Look(1, 1 << 20)

    prefetcher._agents.look = look  # type: ignore[method-assign]
    prefetcher.start()
    async with asyncio.timeout(30):
        await answered.wait()
    assert prefetcher._links.node("well").up
    assert set(prefetcher._states) == {U1, U2}
    await gateway.close()
