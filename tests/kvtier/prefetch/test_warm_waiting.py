"""Many jobs that wait until a worker may be warmed: the worker is looked at, not each of them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from prefetch_world import PAGE, Drive, World

from costmodel.values import Tier
from kvtier.prefetch import events as ev
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, Place

TOKENS = 10 * PAGE
SECONDS = 2


def waiting(jobs: int, queue_ms: float, deadline_ms: float = 3_600_000.0) -> Drive:
    """Asked for one after the other, those asked for later being more urgent; all lie in L3 at w1."""
    world = World(warmable=True, queue_ms={"1": queue_ms})
    run = Drive(Planner(PrefetchParams()), world)
    for number in range(jobs):
        subject = f"t{number}"
        world.remote(subject, TOKENS)
        world.extents[subject] = (Extent(0, TOKENS, (Place("n1", Tier.L3),)),)
        run.tell(ev.Asked(run.planner.new_job(), subject, deadline_ms, priority=number))
        run.now_ms += 1.3
    return run


def live(run: Drive, until_ms: float) -> None:
    while (due := run.planner.next_ms) is not None and due < until_ms:
        run.now_ms = due
        run.tell(ev.Tick())


@pytest.mark.parametrize("jobs", [100, 300])
def test_a_worker_that_is_behind_is_asked_about_a_few_times_a_second(jobs: int) -> None:
    run = waiting(jobs, queue_ms=5_000.0)
    live(run, run.now_ms + 1_000.0)
    run.world.asked = 0
    live(run, run.now_ms + SECONDS * 1_000.0)
    assert 0 < run.world.asked <= SECONDS * 320, "as many as of 64 jobs that are each looked at by itself"
    run.world.queue_ms["1"] = 0.0
    live(run, run.now_ms + 250.0)
    (warm,) = run.warms.values()
    assert warm.subject == f"t{jobs - 1}", "the most urgent first"


def test_those_that_do_not_fit_wait_for_room_together() -> None:
    run = waiting(300, queue_ms=0.0)
    (move,) = run.warms
    run.world.device_tokens = 2 * TOKENS  # half of which may be warmed
    run.tell(ev.MoveEnded(move, run.warms.pop(move).size_bytes))
    live(run, run.now_ms + 1_000.0)
    assert not run.warms, "the first is not used yet"
    run.world.asked = 0
    live(run, run.now_ms + SECONDS * 1_000.0)
    assert 0 < run.world.asked <= SECONDS * 320
    run.world.device_tokens = 100 * TOKENS  # the engine has come back with more
    live(run, run.now_ms + 250.0)
    assert len(run.warms) == 1


def test_all_of_them_get_their_turn() -> None:
    run = waiting(90, queue_ms=0.0)
    warmed = []
    while run.planner.active_jobs > len(warmed):
        live(run, run.now_ms + 50.0)
        for move in sorted(run.warms):
            warm = run.warms.pop(move)
            warmed.append(warm.subject)
            run.tell(ev.MoveEnded(move, warm.size_bytes))
    assert sorted(warmed) == sorted(f"t{number}" for number in range(90))


def test_jobs_expire_though_the_view_has_raised_while_they_waited() -> None:
    run = waiting(3, queue_ms=5_000.0, deadline_ms=5_000.0)
    del run.world.prompts["t2"]  # the most urgent one
    while (due := run.planner.next_ms) is not None and run.planner.active_jobs:
        run.now_ms = due
        with suppress(KeyError):
            run.tell(ev.Tick())
    assert run.planner.active_jobs == 0
    assert not run.holds
