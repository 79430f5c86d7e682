"""Newcomers are given work little by little, and nobody is passed over where everybody would be."""

from __future__ import annotations

import pytest
from fleets import decide, decode, names, pair_fleet, prefill, unified_fleet, with_guards

RAMP = with_guards(ramp_turns=8)


@pytest.mark.parametrize(
    ("served", "inflight", "takes"), [(0, 0, True), (0, 1, False), (3, 3, True), (3, 4, False), (8, 50, True)]
)
def test_a_newcomer_has_one_turn_more_than_it_has_answered(served: int, inflight: int, takes: bool) -> None:
    fleet = unified_fleet([prefill("old", queued_ms=500.0, served=100), prefill("new", served=served, inflight=inflight)])
    assert names(decide(fleet, RAMP))[0] == ("new" if takes else "old")
    assert names(decide(fleet))[0] == "new", "with the guard off"


def test_where_all_are_new_nobody_is_passed_over() -> None:
    fleet = unified_fleet([prefill("a", queued_ms=500.0, served=0), prefill("b", served=0, inflight=9)])
    assert names(decide(fleet, RAMP))[0] == "b"


def test_of_workers_that_began_together_the_first_to_be_known_does_not_get_all() -> None:
    first = prefill("first", queued_ms=500.0, served=8, inflight=15)
    others = [prefill(f"w{i}", served=5, inflight=14) for i in range(20)]
    assert names(decide(unified_fleet([first, *others]), RAMP))[0] != "first"


def test_the_first_to_answer_at_all_does_not_get_all() -> None:
    first = prefill("first", queued_ms=500.0, served=1, inflight=15)
    others = [prefill(f"w{i}", served=0, inflight=14) for i in range(20)]
    assert names(decide(unified_fleet([first, *others]), RAMP))[0] != "first"


def test_decode_workers_ramp_as_well() -> None:
    new = decode("new", served=0)
    busy = [decode("old", running=30, served=100), new]
    assert names(decide(pair_fleet([prefill("p", served=9)], busy), RAMP)) == ("p", "new")


def test_a_worker_is_saturated_beyond_the_limit_and_not_at_it() -> None:
    limited = with_guards(waiting_limit=2)
    fleet = [decode("waited_for", waiting=2), decode("busy", running=9)]
    assert names(decide(pair_fleet([prefill("p")], fleet), limited))[1] == "waited_for"


def test_where_all_are_saturated_the_cheapest_is_chosen() -> None:
    fleet = [decode("fuller", waiting=5, running=9), decode("emptier", waiting=5)]
    assert names(decide(pair_fleet([prefill("p")], fleet), with_guards(waiting_limit=2)))[1] == "emptier"


def test_two_rules_together_leave_somebody() -> None:
    both = with_guards(ramp_turns=8, waiting_limit=2)
    saturated = decode("saturated", waiting=5, served=100)
    ramping = decode("ramping", served=0)
    decision = decide(pair_fleet([prefill("p")], [saturated, ramping]), both)
    assert names(decision)[1] == "ramping"
