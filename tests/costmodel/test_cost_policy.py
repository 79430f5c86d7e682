"""CostPolicy: the exact minimum, then each guard."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.params import CostParams, CutRule, PolicyParams
from costmodel.policies import CostPolicy
from costmodel.score import score_pair
from costmodel.terms import queue_ms
from costmodel.values import (
    Decode,
    DecodeRates,
    Fleet,
    Link,
    Load,
    Prefill,
    PrefillRates,
    Residency,
    Run,
    Scored,
    Tier,
    Turn,
    WorkerKey,
)

OFF = CostParams(
    switch_margin_ms=0,
    kv_pressure_fraction=0,
    never_used_first=False,
    staleness_half_life_ms=0,
    near_tie_ms=0,
    displacement_weight=0,
)
LINK = Link(1.0, 1e6)
RATES = PrefillRates(10.0, 0.02)

loads = st.builds(
    Load,
    st.floats(0, 1e5),
    st.integers(0, 40),
    st.integers(0, 10),
    st.integers(0, 100_000),
    st.sampled_from([0, 80_000, 150_000]),
    st.sampled_from([0, 16, 48]),
)
residencies = st.builds(
    lambda held, deep, age: Residency((Run(0, held, Tier.L1), Run(held, deep, Tier.L2)), age),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.floats(0, 1e6),
)
restores = st.dictionaries(st.just(Tier.L2), st.builds(Link, st.floats(0, 10), st.floats(1e2, 1e7)))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    disaggregated = draw(st.booleans())
    prefills = tuple(
        Prefill(WorkerKey("p", i), draw(st.just(Residency()) | residencies), draw(loads), RATES, draw(restores))
        for i in range(draw(st.integers(1, 4)))
    )
    keys = [WorkerKey("d", i) for i in range(draw(st.integers(1, 4)))] if disaggregated else [p.worker for p in prefills]
    decodes = tuple(Decode(key, draw(loads), DecodeRates(10.0, 0.5), LINK, draw(st.sampled_from([0, 5000]))) for key in keys)
    return Fleet(prefills, decodes, 1000.0, disaggregated)


def pairs(fleet: Fleet) -> list[tuple[Prefill, Decode]]:
    return [(p, d) for p in fleet.prefills for d in fleet.decodes if fleet.disaggregated or p.worker == d.worker]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets(), prompt_tokens=st.integers(1, 20_000), rule=st.sampled_from(CutRule), fraction=st.sampled_from([0, 0.9]))
def test_chosen_pair_is_the_cheapest_of_all_pairs(fleet: Fleet, prompt_tokens: int, rule: CutRule, fraction: float) -> None:
    params = CostParams(rule, 0.3, 0, fraction, 0, False, 600_000.0, 0, displacement_weight=0)
    turn = Turn("t", prompt_tokens, 200)
    decision = CostPolicy(PolicyParams(params)).decide(turn, fleet, 0.0, random.Random(1), explain=True)
    totals = [score_pair(turn, p, d, fleet, params).terms.total_ms for p, d in pairs(fleet)]
    assert decision.chosen.terms.total_ms == pytest.approx(min(totals))
    assert all(other.terms.total_ms >= decision.chosen.terms.total_ms - 1e-6 for other in decision.others)


def worker(
    name: str, *, queued: float = 0.0, held: int = 0, age_ms: float = 0.0, waiting: int = 0, inflight: int = 0
) -> Prefill:
    residency = Residency((Run(0, held, Tier.L1),), age_ms) if held else Residency()
    load = Load(queued_uncached_tokens=queued, waiting_requests=waiting)
    return Prefill(WorkerKey(name), residency, load, RATES, {}, inflight)


def place(
    prefills: list[Prefill], params: CostParams, before: str | None = None, *, policy: CostPolicy | None = None, seed: int = 1
) -> Scored:
    decodes = tuple(Decode(p.worker, Load(), DecodeRates(10.0), LINK) for p in prefills)
    fleet = Fleet(tuple(prefills), decodes, 1000.0, disaggregated=False)
    turn = Turn("t", 10_000, 100, prefill_before=WorkerKey(before) if before else None)
    return (policy or CostPolicy(PolicyParams(params))).decide(turn, fleet, 0.0, random.Random(seed)).chosen


def test_a_long_queue_outweighs_a_long_prefix() -> None:
    holder = worker("holder", held=9000, queued=10_000)
    assert place([holder, worker("idle")], OFF).prefill.worker_id == "idle"
    assert place([worker("holder", held=9000, queued=8_000), worker("idle")], OFF).prefill.worker_id == "holder"


def test_two_turns_in_the_same_millisecond_see_each_other() -> None:
    """What the router adds to the load for the first is what sends the second elsewhere."""
    first = place([worker("a"), worker("b", queued=1)], OFF)
    assert first.prefill.worker_id == "a"
    assert place([worker("a", queued=10_000), worker("b", queued=1)], OFF).prefill.worker_id == "b"


def test_switch_margin_keeps_a_thread_where_it_was() -> None:
    margin = CostParams(switch_margin_ms=20, near_tie_ms=0, displacement_weight=0)
    a, b = worker("a", held=1000), worker("b", held=1900)  # b is 18 ms cheaper
    assert place([a, b], margin, "a").prefill.worker_id == "a"
    assert place([a, b], OFF, "a").prefill.worker_id == "b"
    assert place([a, worker("b", held=2100)], margin, "a").prefill.worker_id == "b"
    assert place([a, b], margin, "gone").prefill.worker_id == "b"


def test_waiting_limit_passes_over_saturated_workers_unless_all_are() -> None:
    limited = CostParams(waiting_limit=4, near_tie_ms=0)
    full, idle = worker("full", held=9000, waiting=5), worker("idle")
    assert place([full, idle], limited).prefill.worker_id == "idle"
    assert place([full, idle], limited, "full").prefill.worker_id == "idle", "not even for its own thread"
    assert place([full, idle], OFF).prefill.worker_id == "full"
    assert place([full, worker("other", waiting=6)], limited).prefill.worker_id == "full"


def test_cold_turns_go_to_the_worker_that_took_none_longest() -> None:
    policy = CostPolicy(PolicyParams(CostParams(near_tie_ms=50)))
    idle = [worker("a"), worker("b"), worker("c", queued=100)]
    taken = [place(idle, OFF, policy=policy, seed=n).prefill.worker_id for n in range(6)]
    assert taken == ["a", "b", "c"] * 2
    warm = [worker("a", held=500), worker("b", held=500)]
    assert place(warm, OFF, policy=policy, seed=3).prefill.worker_id in {"a", "b"}
    assert place(idle, OFF, policy=policy).prefill.worker_id == "a", "a warm turn does not count"


def test_memory_of_cold_turns_is_bounded() -> None:
    policy = CostPolicy(PolicyParams(CostParams()))
    for n in range(100):
        place([worker(f"w{n}"), worker(f"v{n}")], OFF, policy=policy)
    assert len(policy._cold_at) <= 8


def test_staleness_discounts_an_old_hit() -> None:
    params = CostParams(staleness_half_life_ms=1000, near_tie_ms=0, switch_margin_ms=0)
    old, fresh = worker("old", held=9000, age_ms=3000), worker("fresh", held=5000)
    assert place([old, fresh], params).prefill.worker_id == "fresh"
    assert place([old, fresh], OFF).prefill.worker_id == "old"
    scored = place([old], params)
    assert scored.terms.compute_ms == pytest.approx((10 + 20) / 8 + (10 + 200) * 7 / 8)
    assert scored.cut_tokens == 9000


def test_kv_pressure_sends_turns_to_the_emptier_decode() -> None:
    full = Load(kv_tokens_used=95_000, kv_tokens_capacity=100_000)
    decodes = (
        Decode(WorkerKey("full"), full, DecodeRates(10.0, 1.0), LINK),
        Decode(WorkerKey("busy"), Load(running_requests=1, kv_tokens_capacity=100_000), DecodeRates(10.0, 1.0), LINK),
    )
    fleet = Fleet((worker("p"),), decodes, 1000.0, disaggregated=True)

    def chosen(fraction: float) -> Scored:
        params = CostParams(kv_pressure_fraction=fraction, near_tie_ms=0)
        return CostPolicy(PolicyParams(params)).decide(Turn("t", 10_000, 100), fleet, 0.0, random.Random(1)).chosen

    assert chosen(0).decode.worker_id == "full"
    assert chosen(0.9).decode.worker_id == "busy"
    assert chosen(0.9).terms.pressure_ms == 0


def test_softmax_draws_among_near_ties_only() -> None:
    params = CostParams(softmax_temperature=1.0, near_tie_ms=10, switch_margin_ms=0, displacement_weight=0)
    fleet = [worker("a", held=5000), worker("b", held=4700), worker("far", held=100)]  # b is 6 ms dearer
    drawn = Counter(place(fleet, params, seed=n).prefill.worker_id for n in range(300))
    assert drawn["a"] > drawn["b"] > 0
    assert drawn["far"] == 0
    frozen = CostParams(softmax_temperature=0, near_tie_ms=10, switch_margin_ms=0, displacement_weight=0)
    assert {place(fleet, frozen, seed=n).prefill.worker_id for n in range(20)} == {"a"}


def test_exact_ties_go_to_the_fewest_in_flight_and_then_by_lot() -> None:
    tied = [worker("a", held=5, inflight=2), worker("b", held=5, inflight=1), worker("c", held=5, inflight=1)]
    drawn = Counter(place(tied, OFF, seed=n).prefill.worker_id for n in range(100))
    assert set(drawn) == {"b", "c"}
    even = CostParams(softmax_temperature=1.0, near_tie_ms=10)
    assert set(Counter(place(tied, even, seed=n).prefill.worker_id for n in range(100))) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("switch_margin_ms", -1), ("waiting_limit", -1), ("overlap_rho", 1.5), ("near_tie_ms", float("nan"))],
)
def test_parameters_out_of_range_name_their_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        CostParams(**{key: value})  # type: ignore[arg-type]


def test_new_threads_of_one_product_spread_although_one_worker_holds_its_system_prompt() -> None:
    workers = [worker("a", held=1500), worker("b")]
    decodes = tuple(Decode(w.worker, Load(), DecodeRates(10.0), LINK) for w in workers)
    fleet = Fleet(tuple(workers), decodes, 1000.0, disaggregated=False)
    policy = CostPolicy(PolicyParams(CostParams()))
    new = Turn("t", 1600, 100, shared_tokens=1500)
    placed = [policy.decide(new, fleet, 0.0, random.Random(1)).chosen for _ in range(4)]
    assert Counter(scored.prefill.worker_id for scored in placed) == {"a": 2, "b": 2}
    assert {scored.cut_tokens for scored in placed if scored.prefill.worker_id == "b"} == {0}, "the prediction stays true"


def test_a_thread_with_a_past_goes_by_what_a_worker_would_really_save() -> None:
    workers = [worker("a", held=1500), worker("b")]
    decodes = tuple(Decode(w.worker, Load(), DecodeRates(10.0), LINK) for w in workers)
    fleet = Fleet(tuple(workers), decodes, 1000.0, disaggregated=False)
    old = Turn("t", 1600, 100, shared_tokens=1500, prefill_before=WorkerKey("gone"))
    placed = CostPolicy(PolicyParams(CostParams())).decide(old, fleet, 0.0, random.Random(1)).chosen
    assert placed.prefill.worker_id == "a"


def test_work_ahead_known_in_ms_counts_as_that() -> None:
    """Behind a long context a token costs several times what one at the start does; tokens alone cannot tell."""
    load = Load(queued_uncached_tokens=1_000, queued_ms=77.0)
    assert queue_ms(load, PrefillRates(10.0, 0.02)) == 77.0
    assert queue_ms(Load(queued_uncached_tokens=1_000), PrefillRates(10.0, 0.02)) == 20.0


def test_displacement_makes_a_holder_worth_a_longer_queue() -> None:
    """p0 holds all but 1,000 of 10,000 tokens behind 250 ms of work; p1 is idle: 30 + 250 against 210 ms."""
    holder = Prefill(WorkerKey("p0"), Residency((Run(0, 9_000, Tier.L1),)), Load(queued_ms=250.0), PrefillRates(10.0, 0.02), {})
    idle = Prefill(WorkerKey("p1"), Residency(), Load(), PrefillRates(10.0, 0.02), {})
    decode = Decode(WorkerKey("d0"), Load(), DecodeRates(10.0), Link(1.0, 1e6))
    fleet = Fleet((holder, idle), (decode,), 1000.0, disaggregated=True)

    def decide(weight: float) -> Scored:
        policy = CostPolicy(PolicyParams(CostParams(displacement_weight=weight)))
        return policy.decide(Turn("t", 10_000), fleet, 0.0, random.Random(1)).chosen

    assert decide(0.0).prefill.worker_id == "p1"
    # Twice the compute: 60 + 250 against 420 ms; what is predicted stays what it was.
    assert decide(1.0).prefill.worker_id == "p0"
    assert decide(1.0).terms.ttft_ms == pytest.approx(250 + 30 + 1 + 10)


def test_displacement_counts_only_as_far_as_kv_is_used_again() -> None:
    holder = Prefill(WorkerKey("p0"), Residency((Run(0, 9_000, Tier.L1),)), Load(queued_ms=250.0), PrefillRates(10.0, 0.02), {})
    idle = Prefill(WorkerKey("p1"), Residency(), Load(), PrefillRates(10.0, 0.02), {})
    decode = Decode(WorkerKey("d0"), Load(), DecodeRates(10.0), Link(1.0, 1e6))
    policy = CostPolicy(PolicyParams(CostParams(displacement_weight=1.0)))

    def decide(reuse_share: float) -> str:
        fleet = Fleet((holder, idle), (decode,), 1000.0, disaggregated=True, reuse_share=reuse_share)
        return policy.decide(Turn("t", 10_000), fleet, 0.0, random.Random(1)).chosen.prefill.worker_id

    # 250 + 30 (1 + r) against 210 (1 + r): even at r = 0.39.
    assert (decide(0.35), decide(0.45)) == ("p1", "p0")


def test_turns_sent_since_the_last_report_take_decode_room_too() -> None:
    """Both report little use; d0 has been sent more than it can hold since."""
    load = Load(kv_tokens_used=1_000, kv_tokens_capacity=100_000)
    decodes = tuple(
        Decode(WorkerKey(name), load, DecodeRates(10.0), Link(1.0, 1e6), inflight_tokens=tokens)
        for name, tokens in (("d0", 120_000), ("d1", 50_000))
    )
    prefill = Prefill(WorkerKey("p0"), Residency(), Load(), PrefillRates(10.0, 0.02), {})
    fleet = Fleet((prefill,), decodes, 1000.0, disaggregated=True)
    chosen = CostPolicy(PolicyParams()).decide(Turn("t", 10_000, 100), fleet, 0.0, random.Random(1)).chosen
    assert (chosen.decode.worker_id, chosen.terms.admit_ms) == ("d1", 0.0)
    other = score_pair(Turn("t", 10_000, 100), prefill, decodes[0], fleet, CostParams())
    # 120,000 + 10,100 - 90,000 tokens too many, of 90,000 that free within 100 x 10 ms.
    assert other.terms.admit_ms == pytest.approx(40_100 / 90_000 * 100 * 10)


def test_fitted_factors_stretch_the_waits_and_nothing_else() -> None:
    load = Load(running_requests=4, max_running_requests=4)
    decode = Decode(WorkerKey("d"), load, DecodeRates(10.0, 1.0, 1000.0), LINK)
    plain = Fleet((worker("p", queued=1000),), (decode,), 1000.0, disaggregated=True)
    fitted = msgspec.structs.replace(plain, queue_factor=2.0, admit_factor=3.0)
    one, other = (score_pair(Turn("t", 10_000, 100), each.prefills[0], decode, each, OFF).terms for each in (plain, fitted))
    assert (one.queue_ms, one.admit_ms) == (20.0, 250.0)
    assert other == msgspec.structs.replace(one, queue_ms=40.0, admit_ms=750.0)


def test_the_discount_for_a_common_prefix_is_what_that_prefix_would_save() -> None:
    """1,500 tokens are common; b would compute 10,000 for want of them, and is charged for the 8,500 beyond."""
    params = msgspec.structs.replace(OFF, common_prefix_discount=1.0)
    turn = Turn("t", 10_000, 100, shared_tokens=1500)
    # a holds 3,000: 150 ms. b: 210 less 30.
    assert place_turn(turn, [worker("a", held=3000), worker("b")], params) == "a"
    # a holds just those, behind 20 ms: 180 + 20 against 180.
    assert place_turn(turn, [worker("a", held=1500, queued=1000), worker("b")], params) == "b"


def place_turn(turn: Turn, prefills: list[Prefill], params: CostParams) -> str:
    decodes = tuple(Decode(each.worker, Load(), DecodeRates(10.0), LINK) for each in prefills)
    fleet = Fleet(tuple(prefills), decodes, 1000.0, disaggregated=False)
    return CostPolicy(PolicyParams(params)).decide(turn, fleet, 0.0, random.Random(1)).chosen.prefill.worker_id
