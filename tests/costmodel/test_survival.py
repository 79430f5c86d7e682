"""Whether a cached prefix lasts until its turn is computed."""

from __future__ import annotations

import math

import pytest
from fleets import RATES, TURN, decide, names, unified_fleet, with_guards
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.params import CostParams
from costmodel.score import score_prefill
from costmodel.survival import survival
from costmodel.turnover import Turnover
from costmodel.values import Load, Prefill, Residency, Run, Tier, WorkerKey

times = st.floats(0, 1e7)
FOREVER = math.inf


@settings(max_examples=60, deadline=None)
@given(times, st.floats(0, math.inf), times, st.floats(1, 1e12))
def test_it_is_a_probability(idle_ms: float, unheard_ms: float, ahead_ms: float, turnover_ms: float) -> None:
    assert 0 <= survival(idle_ms, unheard_ms, ahead_ms, turnover_ms) <= 1


@settings(max_examples=60, deadline=None)
@given(times, times, times, st.floats(1e3, 1e7), st.floats(1, 10))
def test_longer_waits_staler_reports_and_faster_evictions_never_help(
    idle_ms: float, unheard_ms: float, ahead_ms: float, turnover_ms: float, more: float
) -> None:
    here = survival(idle_ms, unheard_ms, ahead_ms, turnover_ms)
    assert survival(idle_ms, unheard_ms, ahead_ms * more, turnover_ms) <= here + 1e-12
    assert survival(idle_ms, unheard_ms * more, ahead_ms, turnover_ms) <= here + 1e-12
    assert survival(idle_ms, unheard_ms, ahead_ms, turnover_ms / more) <= here + 1e-12


def test_what_was_used_a_moment_ago_goes_last() -> None:
    fresh, old = (survival(idle_ms, 0.0, 5_000.0, 60_000.0) for idle_ms in (1_000.0, 55_000.0))
    assert fresh > 0.999
    assert 0.6 < old < 0.9, "pages about to be evicted go during the wait"


def test_what_events_still_hold_is_there_however_old() -> None:
    assert survival(1e6, 0.0, 0.0, 60_000.0) == 1
    assert survival(60_000.0, FOREVER, 0.0, 60_000.0) == pytest.approx(math.exp(-1)), "without events its age counts"


def test_where_nothing_is_evicted_everything_lasts() -> None:
    assert survival(1e9, FOREVER, 1e9, 0.0) == 1


def test_turnover_is_what_is_held_over_the_pace_of_evictions() -> None:
    turnover = Turnover()
    for second in range(600):
        turnover.observe(50_000 + 100 * second, 100 * second, 1000.0 * second)
    assert turnover.replaced_ms == pytest.approx(500_000, rel=0.05), "50,000 tokens at 100 a second"
    silent = Turnover()
    for second in range(600):
        silent.observe_computed(50_000 + 100 * second, 50_000, 1000.0 * second)
    assert silent.replaced_ms == pytest.approx(500_000, rel=0.05), "without events what is computed pushes as much out"
    roomy = Turnover()
    roomy.observe(50_000, 0, 0)
    assert roomy.replaced_ms == 0


def worker(name: str, held: int, idle_ms: float, load: Load) -> Prefill:
    return Prefill(WorkerKey(name), Residency((Run(0, held, Tier.L1),), 0.0, idle_ms), load, RATES, {})


def test_a_prefix_that_will_be_gone_earns_little() -> None:
    """Both hold the prompt; the first has to queue for longer than its old pages will last."""
    queue = Load(queued_ms=20_000.0, turnover_ms=60_000.0)
    fleet = unified_fleet([worker("old", 9000, 59_000.0, queue)])
    costs = [
        score_prefill(TURN, fleet.prefills[0], fleet, CostParams(eviction_discount=share)).cost_ms for share in (0.0, 0.5, 1.0)
    ]
    assert costs == sorted(costs)
    assert costs[0] < costs[2]


def test_where_two_hold_it_the_one_that_will_keep_it_is_chosen() -> None:
    old = worker("old", 9000, 59_000.0, Load(queued_ms=20_000.0, turnover_ms=60_000.0))
    young = worker("young", 9000, 1_000.0, Load(queued_ms=20_050.0, turnover_ms=60_000.0))
    fleet = unified_fleet([old, young])
    assert names(decide(fleet, with_guards(), TURN))[0] == "old"
    assert names(decide(fleet, with_guards(eviction_discount=1.0), TURN))[0] == "young"
