"""What a node may hold: no more is planned, and where its agent has no room left, what fitted is used."""

from __future__ import annotations

import pytest
from prefetch_world import Drive, World

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import FailReason
from kvtier.prefetch.job import JobState
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, Place

TOKENS = 1_600  # 1.6 MB


@pytest.mark.parametrize("explicit", [True, False])
def test_no_more_is_planned_than_the_node_may_hold(explicit: bool) -> None:
    run = Drive(Planner(), World(stage_bytes=500_000))
    run.world.remote("t", TOKENS)
    if explicit:
        run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=1_000.0))
    else:
        run.tell(ev.Ended("t", WorkerKey("w2"), "bash", "cli"))
        run.now_ms += 200.0
        run.tell(ev.Tick())
    assert [(stage.tokens, stage.size_bytes) for stage in run.stages.values()] == [(496, 496_000)]
    (job,) = run.planner.board.active.values()
    assert job.planned_bytes == 496_000
    ((move, _),) = run.stages.items()
    run.tell(ev.MoveEnded(move, 496_000))
    assert (job.state.value, job.held_tokens) == ("ready", 496)


@pytest.mark.parametrize(("tokens", "state"), [(0, JobState.FAILED), (160, JobState.READY)])
def test_what_an_agent_has_no_room_for_is_asked_for_nowhere_else(tokens: int, state: JobState) -> None:
    run = Drive(Planner(), World())
    run.world.remote("t", TOKENS)
    run.world.extents["t"] = (Extent(0, TOKENS, (Place("n2", Tier.L3), Place("n3", Tier.L3))),)
    handle = run.planner.new_job()
    run.tell(ev.Asked(handle, "t", deadline_ms=1_000.0))
    ((move, _),) = run.stages.items()
    run.stages.clear()
    run.tell(ev.MoveFailed(move, FailReason.NO_ROOM, tokens * 1000, tokens))
    job = run.planner.job(handle)
    assert job is not None
    assert (job.state, job.moved_bytes, job.held_tokens) == (state, tokens * 1000, tokens)
    assert job.reason is (FailReason.NO_ROOM if not tokens else None)
    assert not run.stages
