"""What stores and removals tell: whether computing pushes anything out."""

from __future__ import annotations

import pytest
from fleets import RATES, TURN, decide, names, unified_fleet, with_guards

from costmodel.params import CostParams
from costmodel.score import score_prefill
from costmodel.turnover import Turnover
from costmodel.values import Load, Prefill, Residency, Run, Tier, WorkerKey


def test_nothing_known_counts_as_full() -> None:
    turnover = Turnover()
    assert turnover.evicting == 1


def test_who_has_not_computed_its_caches_worth_has_room() -> None:
    turnover = Turnover()
    turnover.observe_computed(900, 1000, 0)
    assert turnover.evicting == 0
    turnover.observe_computed(1100, 1000, 0)
    assert turnover.evicting == 1
    turnover.observe(1000, 0, 0)
    turnover.observe_computed(1100, 1000, 0)
    assert turnover.evicting == 0, "what it tells of itself is better"


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


def test_counters_that_went_back_begin_anew() -> None:
    turnover = Turnover()
    for stored, removed in ((1e6, 1e6), (1.1e6, 1.1e6), (100, 0), (300, 0)):
        turnover.observe(stored, removed, 0)
    assert 0 < turnover.evicting <= 1


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
