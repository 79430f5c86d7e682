"""What must not make a turn look cheaper: more work ahead, slower rates and links, less that is held, fuller decode workers."""

from __future__ import annotations

import random

import msgspec
from drawn_workers import RESTORE, decodes, fleet_of, prefills
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.params import CostParams, CutRule, PolicyParams
from costmodel.policies import CostPolicy
from costmodel.score import score_decode, score_pair, score_prefill
from costmodel.values import Decode, Fleet, Prefill, Residency, Turn

PARAMS = CostParams(cut_rule=CutRule.BEST)
# The cut is the one that is done first; with a weight on what it displaces, a slower one may displace less and cost less.
OWN_TIME = msgspec.structs.replace(PARAMS, displacement_weight=0.0)
amounts = st.floats(0, 1e5)


@settings(max_examples=80, deadline=None)
@given(prefill=prefills(), more=amounts, tokens=st.integers(1, 50_000))
def test_more_work_ahead_never_helps(prefill: Prefill, more: float, tokens: int) -> None:
    load = msgspec.structs.replace(prefill.load, queued_uncached_tokens=prefill.load.queued_uncached_tokens + more)
    busier = msgspec.structs.replace(prefill, load=load)
    turn, fleet = Turn("t", tokens), fleet_of([prefill], [])
    assert score_prefill(turn, prefill, fleet, OWN_TIME).cost_ms <= score_prefill(turn, busier, fleet, OWN_TIME).cost_ms + 1e-6


@settings(max_examples=80, deadline=None)
@given(prefill=prefills(), tokens=st.integers(1, 50_000), factor=st.floats(1, 10))
def test_slower_links_and_rates_never_help(prefill: Prefill, tokens: int, factor: float) -> None:
    slower = {tier: msgspec.structs.replace(link, bytes_per_ms=link.bytes_per_ms / factor) for tier, link in RESTORE.items()}
    rates = msgspec.structs.replace(prefill.rates, ms_per_token=prefill.rates.ms_per_token * factor)
    turn, fleet = Turn("t", tokens), fleet_of([prefill], [])
    known = score_prefill(turn, prefill, fleet, OWN_TIME).cost_ms
    assert known <= score_prefill(turn, msgspec.structs.replace(prefill, restore=slower), fleet, OWN_TIME).cost_ms + 1e-6
    assert known <= score_prefill(turn, msgspec.structs.replace(prefill, rates=rates), fleet, OWN_TIME).cost_ms + 1e-6


@settings(max_examples=80, deadline=None)
@given(prefill=prefills(), tokens=st.integers(1, 50_000))
def test_holding_less_never_helps_at_the_best_cut(prefill: Prefill, tokens: int) -> None:
    less = msgspec.structs.replace(prefill, residency=Residency(prefill.residency.runs[:-1]))
    turn, fleet = Turn("t", tokens), fleet_of([prefill], [])
    assert score_prefill(turn, prefill, fleet, OWN_TIME).cost_ms <= score_prefill(turn, less, fleet, OWN_TIME).cost_ms + 1e-6


@settings(max_examples=80, deadline=None)
@given(decode=decodes(), more=st.integers(0, 100), kv=st.integers(0, 500_000), output=st.integers(1, 4000))
def test_a_fuller_decode_worker_never_helps(decode: Decode, more: int, kv: int, output: int) -> None:
    load = decode.load
    fuller = msgspec.structs.replace(
        load, running_requests=load.running_requests + more, kv_tokens_used=load.kv_tokens_used + kv
    )
    turn, fleet = Turn("t", 10_000, output), fleet_of([], [decode])
    other = msgspec.structs.replace(decode, load=fuller)
    assert score_decode(turn, decode, fleet, PARAMS).cost_ms <= score_decode(turn, other, fleet, PARAMS).cost_ms + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40_000))
def test_one_more_worker_never_raises_the_best_cost(data: st.DataObject, tokens: int) -> None:
    some = [data.draw(prefills(number)) for number in range(3)]
    other = [data.draw(decodes(number)) for number in range(2)]
    turn = Turn("t", tokens, 200)
    plain = CostParams(switch_margin_ms=0, near_tie_ms=0, never_used_first=False, displacement_weight=0)

    def best(fleet: Fleet) -> float:
        return CostPolicy(PolicyParams(plain)).decide(turn, fleet, 0.0, random.Random(1)).chosen.terms.total_ms

    full = best(fleet_of(some, other))
    assert full <= best(fleet_of(some[:2], other)) + 1e-6
    assert full <= best(fleet_of(some, other[:1])) + 1e-6
    assert full <= min(score_pair(turn, p, d, fleet_of(some, other), plain).terms.total_ms for p in some for d in other) + 1e-6
