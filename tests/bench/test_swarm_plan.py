"""Plans are the same for the same seed and hold what a demo must show."""

from __future__ import annotations

import random

import pytest

from bench.swarm.plan import Shape, plan_swarm


def test_same_seed_same_words() -> None:
    shape = Shape()
    assert plan_swarm(shape, random.Random(7)) == plan_swarm(shape, random.Random(7))
    assert plan_swarm(shape, random.Random(7)) != plan_swarm(shape, random.Random(8))


def test_sessions_share_system_and_tools_but_not_tasks() -> None:
    plans = plan_swarm(Shape(sessions=5), random.Random(1))
    assert len({plan.system for plan in plans}) == 1
    assert len({plan.prompts for plan in plans}) == 5


def test_one_bursts_and_one_resumes() -> None:
    plans = plan_swarm(Shape(sessions=3, subagents=4), random.Random(1))
    assert [len(plan.subagents) for plan in plans] == [4, 0, 0]
    assert [plan.idle_before_turn is not None for plan in plans] == [False, False, True]
    parent = plans[0]
    assert all(child.tools == parent.tools and child.cache_key == parent.cache_key for child in parent.subagents)
    assert all(child.prompts != parent.prompts for child in parent.subagents)


@pytest.mark.parametrize(("sessions", "turns"), [(1, 1), (1, 2), (1, 8), (2, 1), (2, 3), (6, 4)])
def test_marks_lie_inside_the_session(sessions: int, turns: int) -> None:
    for plan in plan_swarm(Shape(sessions=sessions, turns=turns), random.Random(3)):
        assert len(plan.prompts) == turns
        assert plan.burst_after_turn is None or 0 <= plan.burst_after_turn < turns - 1
        assert plan.idle_before_turn is None or 0 < plan.idle_before_turn < turns
