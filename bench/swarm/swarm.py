"""Runs the planned sessions at once against one gateway and returns every turn in the order it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import httpx

from bench.swarm.agent import Agent, Watcher
from bench.swarm.plan import Shape, ThreadPlan
from bench.swarm.turns import TurnRecord

REQUEST_TIMEOUT_S = 600.0


async def run_swarm(
    base_url: str, model: str, shape: Shape, plans: Sequence[ThreadPlan], watcher: Watcher, api_key: str = "none"
) -> list[TurnRecord]:
    headers = {"authorization": f"Bearer {api_key}", "user-agent": "loadback-swarm"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=REQUEST_TIMEOUT_S, limits=limits) as http:
        agent = Agent(http, model, shape, watcher, time.monotonic, asyncio.sleep)
        async with asyncio.TaskGroup() as group:
            for plan in plans:
                group.create_task(agent.run(plan))
    return agent.turns
