"""What stores and removals tell: whether computing pushes anything out, and how long what is held lasts."""

from __future__ import annotations

import random

import pytest
from fleets import RATES, TURN, decide, names, unified_fleet, with_guards

from costmodel.params import CostParams
from costmodel.score import score_prefill
from costmodel.terms import live_probability
from costmodel.turnover import Turnover
from costmodel.values import Load, Prefill, Residency, Run, Tier, WorkerKey


def test_nothing_known_counts_as_full() -> None:
    turnover = Turnover()
    assert (turnover.evicting, turnover.evicted_per_ms) == (1.0, 0.0)


def test_while_there_is_room_nothing_is_evicted() -> None:
    turnover = Turnover()
    turnover.observe(0, 0, 0)
    assert turnover.evicting == 0, "it has told of nothing yet: it is empty"
    turnover.observe(50_000, 0, 1000)
    assert turnover.evicting == 0


def test_a_full_cache_gives_up_what_it_takes_in() -> None:
    turnover = Turnover()
    for second in range(300):
        turnover.observe(1e6 + 100 * second, 100 * second, 1000.0 * second)
    assert turnover.evicting == pytest.approx(1.0)
    assert turnover.evicted_per_ms == pytest.approx(0.1, rel=0.05), "100 tokens a second"


def test_counters_that_went_back_begin_anew() -> None:
    turnover = Turnover()
    for stored, removed in ((1e6, 1e6), (1.1e6, 1.1e6), (100, 0), (300, 0)):
        turnover.observe(stored, removed, 0)
    assert 0 < turnover.evicting <= 1
    assert turnover.evicted_per_ms > 0


def test_what_was_not_used_while_the_cache_was_replaced_is_probably_gone() -> None:
    assert live_probability(60_000, 1e12, 60_000) == pytest.approx(1 / 2.718281828, rel=1e-6)
    assert live_probability(60_000, 60_000, 0.0) == pytest.approx(0.5)
    assert live_probability(60_000, 0, 60_000) == 1, "the discount is off"
    rng = random.Random(1)
    for _ in range(100):
        age, more, half, turnover = rng.uniform(0, 1e6), rng.uniform(0, 1e5), rng.uniform(1, 1e6), rng.uniform(1, 1e6)
        known = live_probability(age, half, turnover)
        assert live_probability(age + more, half, turnover) <= known
        assert live_probability(age, half, turnover + more) >= known


def worker(name: str, held: int, load: Load) -> Prefill:
    residency = Residency((Run(0, held, Tier.L1),) if held else ())
    return Prefill(WorkerKey(name), residency, load, RATES, {})


def test_computing_where_the_cache_has_room_displaces_nothing() -> None:
    """The holder's queue of 250 ms is longer than the 180 ms that computing takes, but for those that come after."""
    queued = Load(queued_ms=250.0, evicting=1.0)
    price = with_guards(displacement_weight=1.0)
    full = unified_fleet([worker("holder", 9000, queued), worker("other", 0, Load(evicting=1.0))])
    roomy = unified_fleet([worker("holder", 9000, queued), worker("other", 0, Load(evicting=0.0))])
    assert names(decide(full, price, TURN))[0] == "holder"
    assert names(decide(roomy, price, TURN))[0] == "other"


def test_terms_tell_time_and_not_the_price() -> None:
    params = CostParams()
    fleets = [unified_fleet([worker("w", 0, Load(evicting=share))]) for share in (0.0, 1.0)]
    left, right = (score_prefill(TURN, fleet.prefills[0], fleet, params) for fleet in fleets)
    assert left.cut.compute_ms == right.cut.compute_ms
    assert left.cost_ms < right.cost_ms
