"""Warm requests: in windows, within L1, and what becomes of them when engines die and sources are lost."""

from __future__ import annotations

import pytest
from prefetch_world import Drive, World, arrive, drive, only_job

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import FailReason, Trigger
from kvtier.prefetch.job import JobState
from kvtier.prefetch.moves import Warm
from kvtier.prefetch.view import Extent, Place

W1 = WorkerKey("w1")
TOKENS = 1_600  # 1.6 MB


def staged(**params: object) -> Drive:
    """An explicit call's pages have come to its node."""
    world = World(warmable=True)
    world.remote("t", TOKENS)
    run = drive(world, **params)
    run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=60_000.0))
    arrive(run)
    return run


def test_warm_requests_go_in_windows_and_not_to_a_busy_engine() -> None:
    world = World(warmable=True)
    world.remote("t", TOKENS)
    run = drive(world, warm_window_tokens=1_000)
    world.queue_ms["1"] = 10_000.0
    run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=60_000.0))
    arrive(run)
    assert not run.warms
    world.queue_ms.clear()
    sizes = []
    run.now_ms = run.planner.next_ms or 0.0
    run.tell(ev.Tick())
    while run.warms:
        move, warm = run.warms.popitem()
        sizes.append((warm.tokens, warm.size_bytes))
        run.tell(ev.MoveEnded(move, warm.size_bytes))
    assert sizes == [(1_000, 1_000_000), (1_600, 600_000)]
    tally = run.planner.tallies[Trigger.EXPLICIT]
    assert (tally.warmed_bytes, tally.warm_wasted_bytes) == (1_600_000, 0)
    run.tell(ev.CancelJob(only_job(run).id))
    assert tally.warm_wasted_bytes == 1_600_000


def test_what_was_warmed_is_not_pushed_out_by_the_next() -> None:
    world = World(warmable=True, device_tokens=4_000)
    run = drive(world)
    for name in ("first", "second"):
        world.remote(name, TOKENS)
        run.tell(ev.Asked(run.planner.new_job(), name, deadline_ms=60_000.0))
        run.now_ms += 1_000
        arrive(run)
        run.tell(ev.Tick())
        for move in list(run.warms):
            run.tell(ev.MoveEnded(move, run.warms.pop(move).size_bytes))
    assert {job.subject: job.warmed_tokens for job in run.planner.board.active.values()} == {"first": 1_600, "second": 0}
    run.tell(ev.Sent("first", W1))
    run.tell(ev.Served("first", W1))
    run.now_ms = run.planner.next_ms or 0.0
    run.tell(ev.Tick())
    assert [warm.subject for warm in run.warms.values()] == ["second"]


def test_a_restarted_engine_keeps_its_node_s_l3() -> None:
    run = staged()
    run.tell(ev.Tick())
    assert [type(move) for move in run.warms.values()] == [Warm]
    run.warms.clear()
    run.tell(ev.EngineRestarted(W1))
    assert only_job(run).state is JobState.READY
    assert run.holds


def test_a_restarted_engine_is_warmed_again() -> None:
    run = staged()
    (move,) = run.warms
    run.tell(ev.MoveEnded(move, run.warms.pop(move).size_bytes))
    assert not run.warms
    run.tell(ev.EngineRestarted(W1))
    assert [(warm.start, warm.tokens) for warm in run.warms.values()] == [(0, TOKENS)]
    tally = run.planner.tallies[Trigger.EXPLICIT]
    assert (tally.warmed_bytes, tally.warm_wasted_bytes) == (1_600_000, 1_600_000), "it is gone with the engine"


def test_what_an_engine_was_warmed_with_when_it_died_is_warmed_when_it_is_back() -> None:
    run = staged()
    (move,) = run.warms
    del run.warms[move]
    run.tell(ev.MoveFailed(move, FailReason.REFUSED))
    run.now_ms = 1_000.0
    run.tell(ev.Tick())
    assert not run.warms, "it refused"
    run.tell(ev.EngineRestarted(W1))
    assert [(warm.start, warm.tokens) for warm in run.warms.values()] == [(0, TOKENS)]


def test_what_is_left_when_its_source_dies_is_warmed_at_once() -> None:
    run = staged(chunk_bytes=800_000, link_inflight_bytes=800_000)
    run.world.extents["t"] = (Extent(0, 800, (Place("n1", Tier.L3),)), Extent(800, 800, (Place("n2", Tier.L3),)))
    run.world.lost.add("n2")
    run.tell(ev.NodeLost("n2"))
    assert (only_job(run).state, only_job(run).held_tokens) == (JobState.READY, 800)
    assert [(warm.start, warm.tokens) for warm in run.warms.values()] == [(0, 800)]


@pytest.mark.parametrize(("told", "counted"), [(-1, 0), (10, 10), (1 << 60, 800_000)])
def test_an_engine_brings_up_no_more_than_it_was_asked_for(told: int, counted: int) -> None:
    run = staged(warm_window_tokens=800)
    (move,) = run.warms
    assert (run.warms[move].start, run.warms[move].size_bytes) == (0, 800_000)
    del run.warms[move]
    run.tell(ev.MoveEnded(move, told))
    assert [(warm.start, warm.tokens, warm.size_bytes) for warm in run.warms.values()] == [(800, TOKENS, 800_000)]
    assert run.planner.tallies[Trigger.EXPLICIT].warmed_bytes == counted
