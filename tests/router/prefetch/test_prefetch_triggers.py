"""What the gateway begins by itself, from the event to the page: a worker drains, a reply ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefetch_stage import PAGE_BYTES, Stage, nothing_left, prefetch_stage, talk, turn, until

from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import JobState

pytestmark = pytest.mark.slow

OTHER = {"a": "b", "b": "a"}
QUICK_L2 = 50.0  # GB/s: a restore costs next to nothing, and computing 1 ms a token


def likely(*triggers: Trigger) -> dict[str, Any]:
    return {"warm": False, "triggers": triggers, "min_probability": 0.05}


async def served(stage: Stage, lines: int = 300) -> tuple[str, str]:
    """A thread, and the node whose worker has served it."""
    thread = await turn(stage, talk("disks", lines))
    placed = stage.gateway.turns.records.newest(1)[0].decision
    assert placed is not None
    return thread, placed.chosen.prefill.worker_id.removeprefix("u-")


async def test_threads_leave_a_draining_worker_before_their_turns_come(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch=likely(Trigger.DRAIN), l2_gb_per_s=QUICK_L2) as stage:
        thread, node = await served(stage)
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        digests = await stage.put(node, ids)
        pages = len(digests) // 32
        await stage.http.post(f"/admin/workers/u-{node}/drain")
        await until(lambda: stage.pinned(OTHER[node]) == pages * PAGE_BYTES, "moved and leased")
        messages = [*talk("disks", 300), {"role": "assistant", "content": "A."}, {"role": "user", "content": "B?"}]
        await turn(stage, messages)
        tally = stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.DRAIN]
        await until(lambda: tally.jobs[JobState.CONSUMED] == 1, "used")
        assert tally.moved_bytes == pages * PAGE_BYTES
        await nothing_left(stage)


async def test_an_idle_thread_s_pages_come_to_where_it_will_be_sent(tmp_path: Path) -> None:
    """Its engine has lost them; another node has them."""
    async with prefetch_stage(tmp_path, prefetch=likely(Trigger.TURN_END), l2_gb_per_s=QUICK_L2) as stage:
        thread, node = await served(stage)
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        digests = await stage.put(OTHER[node], ids)
        for worker in ("u-a", "u-b"):
            assert (await stage.http.post(f"/admin/workers/{worker}/flush")).status_code == 200
        await stage.http.post(f"/admin/workers/u-{OTHER[node]}/drain")
        await until(lambda: stage.pinned(node) == len(digests) // 32 * PAGE_BYTES, "moved and leased")
        tally = stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.TURN_END]
        assert (await stage.http.delete("/v1/kv/prefetch", params={"thread": thread})).status_code == 200
        assert tally.jobs == {JobState.CANCELLED: 1}
        assert (tally.useful_bytes, tally.wasted_bytes) == (0, tally.moved_bytes)
        await nothing_left(stage)


async def test_a_compaction_takes_back_what_was_for_the_history_before_it(tmp_path: Path) -> None:
    before = [*talk("disks", 100), {"role": "assistant", "content": "Much. " * 100}, {"role": "user", "content": "Go on."}]
    after = [before[0], {"role": "user", "content": "You told much of disks. Go on."}]
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
    client = {"headers": {"thread-id": "t", "session-id": "s"}, "tools": [tool]}
    async with prefetch_stage(tmp_path, prefetch={"warm": False, "triggers": [Trigger.EXPLICIT]}) as stage:
        thread = await turn(stage, before, **client)
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        digests = await stage.put("b", ids)
        for worker in ("u-a", "u-b"):
            assert (await stage.http.post(f"/admin/workers/{worker}/flush")).status_code == 200
        asked = await stage.ask(thread=thread, worker="u-a")
        await until(lambda: stage.pinned("a") == len(digests) // 32 * PAGE_BYTES, "moved and leased")
        assert await turn(stage, after, **client) != thread
        assert (await stage.until_state(asked["id"], "cancelled", "consumed", "expired"))["state"] == "cancelled"
        await nothing_left(stage)
