"""Every figure is taken in the unit that its name says: in another unit of time, or of size, nothing else changes.

All factors are powers of two, so that not even rounding does.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from drawn_workers import decodes, fleet_of, prefills
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.params import CostParams, PolicyParams
from costmodel.policies import REGISTRY
from costmodel.values import Decision, Decode, DecodeRates, Fleet, Link, Load, Prefill, PrefillRates, Residency, Turn, WorkerKey

replace = msgspec.structs.replace
PARAMS = CostParams(eviction_discount=1.0, softmax_temperature=0.5)
TURN = Turn("t", 30_000, 400, prefill_before=WorkerKey("p", 1), decode_before=WorkerKey("d", 1))
TIME, SIZE = 1 / 1024, 1024.0  # no longer times: AIBrix counts no decode worker as slower than a token a second


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Prefills that are held for a while, queue and turn over; some of their runs lie on another node."""
    some = [_lived(draw, draw(prefills(number))) for number in range(3)]
    other = [draw(decodes(number)) for number in range(2)]
    lifetimes_ms = [float(draw(st.integers(1, 100_000))) for _ in other]
    other = [replace(d, rates=replace(d.rates, lifetime_ms=ms)) for d, ms in zip(other, lifetimes_ms, strict=True)]
    return fleet_of(some, other)


def _lived(draw: st.DrawFn, prefill: Prefill) -> Prefill:
    runs = tuple(replace(run, source="far") if run.tier > 2 else run for run in prefill.residency.runs)
    residency = Residency(runs, float(draw(st.integers(0, 10_000_000))), float(draw(st.integers(0, 10_000_000))))
    queued_ms, turnover_ms = float(draw(st.integers(0, 100_000))), float(draw(st.integers(0, 1_000_000)))
    turns = draw(st.integers(0, 9))
    load = replace(prefill.load, queued_ms=queued_ms, queued_turns=turns, turnover_ms=turnover_ms, kv_tokens_capacity=30_000)
    rates = replace(prefill.rates, queue_ms_per_token=0.01, ms_per_cached_token=0.001)
    return replace(prefill, residency=residency, load=load, rates=rates, sources={"far": Link(0.3, 2e7, 2)})


def in_time(fleet: Fleet, by: float) -> Fleet:
    """Every time of `fleet`, and what is per time, in a unit that is 1 / `by` ms."""

    def link(known: Link) -> Link:
        return replace(known, latency_ms=by * known.latency_ms, bytes_per_ms=known.bytes_per_ms / by)

    def load(known: Load) -> Load:
        queued_ms = None if known.queued_ms is None else by * known.queued_ms
        return replace(known, queued_ms=queued_ms, age_ms=by * known.age_ms, turnover_ms=by * known.turnover_ms)

    def residency(known: Residency) -> Residency:
        return Residency(known.runs, by * known.age_ms, by * known.idle_ms)

    def prefill(known: Prefill) -> Prefill:
        rates = PrefillRates(*(by * value for value in msgspec.structs.astuple(known.rates)))
        links = {tier: link(each) for tier, each in known.restore.items()}
        sources = {name: link(each) for name, each in known.sources.items()}
        lasting = {"residency": residency(known.residency), "load": load(known.load)}
        return replace(known, rates=rates, restore=links, sources=sources, **lasting)

    def decode(known: Decode) -> Decode:
        rates = DecodeRates(*(by * value for value in msgspec.structs.astuple(known.rates)))
        return replace(known, rates=rates, load=load(known.load), transfer=link(known.transfer))

    return replace(fleet, prefills=tuple(map(prefill, fleet.prefills)), decodes=tuple(map(decode, fleet.decodes)))


def in_size(fleet: Fleet, by: float) -> Fleet:
    """KV and links in a unit that is 1 / `by` bytes."""

    def link(known: Link) -> Link:
        return replace(known, bytes_per_ms=by * known.bytes_per_ms)

    prefills = tuple(
        replace(
            each,
            restore={tier: link(known) for tier, known in each.restore.items()},
            sources={name: link(known) for name, known in each.sources.items()},
        )
        for each in fleet.prefills
    )
    decodes = tuple(replace(each, transfer=link(each.transfer)) for each in fleet.decodes)
    return replace(fleet, prefills=prefills, decodes=decodes, kv_bytes_per_token=by * fleet.kv_bytes_per_token)


def decided(name: str, fleet: Fleet, params: CostParams) -> Decision:
    return REGISTRY[name](PolicyParams(params)).decide(TURN, fleet, 0.0, random.Random(1), explain=True)


@pytest.mark.parametrize("name", sorted(REGISTRY))
@settings(max_examples=12, deadline=None)
@given(fleet=fleets())
def test_times_in_another_unit_give_the_same_choice_and_every_term_in_that_unit(name: str, fleet: Fleet) -> None:
    times = ("switch_margin_ms", "staleness_half_life_ms", "near_tie_ms")
    other = replace(PARAMS, **{key: TIME * getattr(PARAMS, key) for key in times})
    known, found = decided(name, fleet, PARAMS), decided(name, in_time(fleet, TIME), other)
    assert [(each.prefill, each.decode, each.cut_tokens) for each in (known.chosen, *known.others)] == [
        (each.prefill, each.decode, each.cut_tokens) for each in (found.chosen, *found.others)
    ]
    for left, right in zip((known.chosen, *known.others), (found.chosen, *found.others), strict=True):
        terms = [TIME * value for value in msgspec.structs.astuple(left.terms)]
        assert terms == pytest.approx(msgspec.structs.astuple(right.terms), rel=1e-9)


@pytest.mark.parametrize("name", sorted(REGISTRY))
@settings(max_examples=12, deadline=None)
@given(fleet=fleets())
def test_sizes_in_another_unit_change_nothing(name: str, fleet: Fleet) -> None:
    assert decided(name, fleet, PARAMS) == decided(name, in_size(fleet, SIZE), PARAMS)
