"""Warm requests for idle threads stay away from workers that turns were lately held for."""

from __future__ import annotations

import pytest
from prefetch_world import Drive, World

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.planner import Planner

W1, W2 = WorkerKey("w1"), WorkerKey("w2")
TOKENS = 1_600


def warmable() -> Drive:
    world = World(warmable=True, reads_remote=True, link_bytes_per_ms=50_000.0)
    world.remote("t", TOKENS)
    return Drive(Planner(), world)


def idle(run: Drive) -> None:
    run.tell(ev.Ended("t", W2, "bash", "cli"))
    run.now_ms += 200.0
    run.tell(ev.Tick())


def warmed(run: Drive) -> list[str]:
    return [warm.subject for warm in run.warms.values()]


def test_an_idle_thread_is_warmed_when_no_turn_was_held_for_a_while() -> None:
    run = warmable()
    run.tell(ev.Held("other", W1))
    run.now_ms = 90_000.0
    idle(run)
    assert run.planner.active_jobs == 1
    while not run.warms and run.now_ms < 150_000:
        run.now_ms = run.planner.next_ms or 0.0
        run.tell(ev.Tick())
    assert warmed(run) == ["t"]
    assert 120_000 <= run.now_ms < 120_500


@pytest.mark.parametrize("held", [ev.Held("other", W2), ev.Held("other", W1, full=False)])
def test_turns_that_were_held_elsewhere_or_for_their_pages_keep_no_warm_request_back(held: ev.Held) -> None:
    run = warmable()
    run.tell(held)
    idle(run)
    assert warmed(run) == ["t"]


def test_an_explicit_call_is_warmed_whoever_was_held() -> None:
    run = warmable()
    run.tell(ev.Held("other", W1))
    run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=60_000.0))
    for move in sorted(run.stages):
        run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    run.tell(ev.Tick())
    assert warmed(run) == ["t"]
