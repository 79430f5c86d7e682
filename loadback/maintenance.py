"""Takes workers out of a running pool one after the other, as for maintenance: their sessions go on elsewhere, and return."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import msgspec

from bench.swarm.agent import Watcher
from bench.swarm.plan import ThreadPlan
from bench.swarm.turns import TurnRecord
from loadback.admin_api import Worker, Workers, fetch
from loadback.pool_spec import POOL_NAME, Member, worker_config
from loadback.terminal import say

OUT_S = 1.5  # long enough for the gateway to notice, and for turns to go elsewhere
POLL_S = 0.05
DEADLINE_S = 60.0
READY = "ready"


class Midway:
    """A `Watcher` that passes everything on; `reached` is set with the turn that makes a third of the planned ones."""

    def __init__(self, inner: Watcher, plans: Sequence[ThreadPlan]) -> None:
        self.reached = asyncio.Event()
        self._inner = inner
        self._left = sum(plan.planned_turns for plan in plans) // 3

    def on_state(self, plan: ThreadPlan, state: str) -> None:
        self._inner.on_state(plan, state)

    def on_turn(self, record: TurnRecord) -> None:
        self._inner.on_turn(record)
        self._left -= 1
        if self._left <= 0:
            self.reached.set()


async def take_out_in_turn(http: httpx.AsyncClient, members: Sequence[Member]) -> None:
    """Drain each worker, let it be away for a while, and add it again. Raises `AdminError`, TimeoutError if that never ends."""
    for member in members:
        say(f"{member.name} gets no new turns for a while, as for maintenance: those under way end there, others go elsewhere")
        async with asyncio.timeout(DEADLINE_S):
            await _drained(http, member)
            await asyncio.sleep(OUT_S)
            await fetch(http, f"/admin/workers/{member.name}", object, method="DELETE")
            worker = worker_config(member).model_dump(exclude_defaults=True)
            body = msgspec.json.encode({"pool": POOL_NAME, "role": member.role, "worker": worker})
            await fetch(http, "/admin/workers", object, body)
            await _ready(http, member)
        say(f"{member.name} is back and gets turns again")


async def _drained(http: httpx.AsyncClient, member: Member) -> None:
    while (await fetch(http, f"/admin/workers/{member.name}/drain", Worker, b"")).inflight:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(POLL_S)


async def _ready(http: httpx.AsyncClient, member: Member) -> None:
    while await _state(http, member) != READY:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(POLL_S)


async def _state(http: httpx.AsyncClient, member: Member) -> str:
    workers = (await fetch(http, "/admin/workers", Workers)).workers
    return next((worker.state for worker in workers if worker.id == member.name), "")
