"""Policies compared on real engines, very small: this gateway and smg in front of one pool, a worker taken out and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from bench.placement.experiment import OURS, RIVAL, Bench, Outage, Plan, one_run
from bench.placement.figures import figures
from bench.placement.routers import loadback, smg
from bench.placement.site import SLOW, Site
from bench.reach.node import NodeAgent
from bench.simulate.workload import Call, SessionPlan, ThreadPlan
from engine_adapters.launch.pool import Pool

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

CALLS = 5


def session(number: int) -> SessionPlan:
    pages = number * 100 + 1
    calls = tuple(Call(160 * turn, 4, (pages, 10 * turn), 400.0) for turn in range(1, CALLS + 1))
    return SessionPlan(f"s{number}", (ThreadPlan(calls),))


SESSIONS = tuple(session(number) for number in range(3))
PLAN = Plan(concurrency=3, ramp_ms=100.0, outages=(Outage(1 - SLOW, 0.5, 1.0),))


@pytest_asyncio.fixture(loop_scope="session")
async def bench(pd_pool: Pool, tmp_path: Path) -> AsyncIterator[Bench]:
    agent = NodeAgent(tmp_path, dram_bytes=64 << 20, node="a", peers=True)
    await agent.start()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=120.0) as http:
            site = Site(pd_pool, agent, http)
            async with loadback(site, tmp_path) as ours, smg(site, tmp_path) as rival:
                yield Bench(site, http, ours, dict.fromkeys(OURS, ours) | {RIVAL: rival})
    finally:
        await agent.stop()


async def test_both_routers_serve_all_turns_while_a_worker_leaves_and_returns(bench: Bench) -> None:
    for policy in ("cost", RIVAL):
        run = await one_run(bench, PLAN, SESSIONS, 0, policy)
        told = figures(run.turns)
        assert (told["turns"], told["errors"]) == (15, 0), [turn.error for turn in run.turns]
        assert told["later_call_hit"] > 0.3
        assert told["ttft_ms"]["p50"] > 0
        assert len(run.predicted) == (15 if policy == "cost" else 0)
        assert sum(turn.first_call for turn in run.turns) > len(SESSIONS)
