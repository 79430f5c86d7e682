"""What restores take, learned from agents' counts and from replies: whatever the prior, whatever the noise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.cut import Site, find_cut
from costmodel.lesson import lesson
from costmodel.params import CostParams, CutRule
from costmodel.restore import KnownRestore, RestoreLinks
from costmodel.score import score_prefill
from costmodel.terms import Leg, add_run, compute_ms, exposed_ms
from costmodel.values import Fleet, Link, Load, Prefill, PrefillRates, Residency, Run, Terms, Tier, Turn, WorkerKey

KV_BYTES = 70_000.0
RATES = PrefillRates(10.0, 0.05)
TRUE = {Tier.L2: Link(0.05, 5e6), Tier.L3: Link(0.1, 2e6), Tier.L4: Link(0.2, 5e5)}
DEEP = (Tier.L3, Tier.L4)
TURN = Turn("t", 40_000)


def off_by(factor: float) -> RestoreLinks:
    return RestoreLinks({tier: Link(link.latency_ms, link.bytes_per_ms * factor) for tier, link in TRUE.items()})


def fetch(tier: Tier, links: dict[Tier, Link], tokens: int, computing_ms: float) -> float:
    """The exposed time of one run, as an engine with these links has it."""
    legs: dict[Leg, float] = {}
    add_run(legs, Run(0, tokens, tier), tokens * KV_BYTES, links, {})
    return exposed_ms(legs, 0.0, computing_ms, 1.0)


def served(links: RestoreLinks, tier: Tier, rng: random.Random) -> None:
    """One turn that restores most of its prompt: noisy, and sometimes far off for a reason that nobody tells."""
    cached = rng.randrange(10_000, 100_000)
    prompt = cached + rng.randrange(50, 500)
    computing_ms = compute_ms(RATES, prompt, cached)
    ttft_ms = (computing_ms + fetch(tier, TRUE, cached, computing_ms)) * rng.uniform(0.9, 1.1)
    if rng.random() < 0.1:
        ttft_ms *= 20.0
    told_as = Tier.L2 if tier is Tier.L2 else Tier.L3
    legs = links.legs({told_as: cached}, tier, KV_BYTES)
    exposed_ms = fetch(tier, links.restore, cached, computing_ms)
    terms = Terms(fetch_ms=max(legs.host_ms, legs.deep_ms), compute_ms=computing_ms, exposed_ms=exposed_ms)
    told = lesson(terms, ttft_ms, RATES, prompt, cached, legs).restore
    if told is not None:
        links.observe(told.tier, told.predicted_ms, told.actual_ms)


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("tier", [Tier.L2, Tier.L3, Tier.L4])
def test_replies_find_the_true_rate_from_a_prior_that_is_off_by_four(tier: Tier, factor: float) -> None:
    rng = random.Random(7)
    links = off_by(factor)
    links.start_from(KnownRestore({"L2": TRUE[Tier.L2]} if tier is not Tier.L2 else {}))
    for _ in range(100):
        served(links, tier, rng)
    assert links.restore[tier].bytes_per_ms == pytest.approx(TRUE[tier].bytes_per_ms, rel=0.2)
    others = [other for other in TRUE if other not in (tier, Tier.L2)]
    assert all(links.restore[other].bytes_per_ms == pytest.approx(TRUE[other].bytes_per_ms * factor) for other in others)


@pytest.mark.parametrize("factor", [0.25, 4.0])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000))
def test_agents_counts_find_the_true_bandwidth(factor: float, seed: int) -> None:
    rng = random.Random(seed)
    links = off_by(factor)
    for _ in range(100):
        for tier, source in ((Tier.L3, ""), (Tier.L3, "far"), (Tier.L4, "")):
            rate = TRUE[tier].bytes_per_ms * (0.5 if source else 1.0)
            outlier = 30.0 if rng.random() < 0.02 else 1.0
            size = rng.uniform(5e6, 5e8)
            links.told(tier, source, size, size / rate * rng.uniform(0.8, 1.2) * outlier)
    for tier in DEEP:
        assert 0.5 < links.restore[tier].bytes_per_ms / TRUE[tier].bytes_per_ms < 1.5
    assert 0.5 < links.sources["far"].bytes_per_ms / (TRUE[Tier.L3].bytes_per_ms / 2) < 1.5
    assert links.restore[Tier.L2].bytes_per_ms == TRUE[Tier.L2].bytes_per_ms * factor, "agents say nothing of the host link"


anything = st.floats(allow_nan=True, allow_infinity=True)
lessons = st.tuples(st.booleans(), st.sampled_from(Tier), st.sampled_from(["", "far"]), anything, anything)


@settings(max_examples=60, deadline=None)
@given(st.lists(lessons, max_size=50))
def test_whatever_it_is_told_rates_stay_positive_and_finite(told: list[tuple[bool, Tier, str, float, float]]) -> None:
    links = off_by(1.0)
    for by_agent, tier, source, first, second in told:
        if by_agent:
            links.told(tier, source, first, second)
        else:
            links.observe(tier, first, second)
        for link in (*links.restore.values(), *links.sources.values()):
            assert 0 < link.bytes_per_ms < math.inf
            assert 0 <= link.latency_ms < math.inf
    again = off_by(1.0)
    again.start_from(links.known())
    for tier, link in links.restore.items():
        assert again.restore[tier].bytes_per_ms == pytest.approx(link.bytes_per_ms)
    assert again.sources == {source: link for source, link in links.sources.items() if f"L3 {source}" in links.known().links}


def test_an_agents_first_word_keeps_what_replies_have_shown() -> None:
    links = off_by(4.0)
    for _ in range(50):
        links.observe(Tier.L3, 1e9 / links.restore[Tier.L3].bytes_per_ms, 1e9 / TRUE[Tier.L3].bytes_per_ms)
    before = links.restore[Tier.L3].bytes_per_ms
    links.told(Tier.L3, "", 1e9, 1e9 / 1e7)
    assert links.restore[Tier.L3].bytes_per_ms == pytest.approx(before, rel=0.01), "the engine is not faster for that"
    links.told(Tier.L3, "", 1e9, 1e9 / 0.5e7)
    assert links.restore[Tier.L3].bytes_per_ms < before, "from then on the link moves what is made of it"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DEEP), st.floats(1e5, 1e8), st.floats(1e5, 1e8), st.sampled_from(CutRule))
def test_a_slower_link_never_makes_a_turn_cheaper(tier: Tier, one: float, other: float, rule: CutRule) -> None:
    costs = []
    for rate in sorted((one, other)):
        links = off_by(1.0)
        links.told(tier, "", 1e9, 1e9 / rate)
        site = Site(Residency((Run(0, 30_000, tier),)), links.restore, RATES, 0.0, KV_BYTES, 1.0, links.sources)
        cut = find_cut(40_000, site, rule)
        costs.append(cut.exposed_ms + cut.compute_ms)
    assert costs[0] >= costs[1] - 1e-6


def test_a_source_is_believed_by_its_own_link() -> None:
    links = off_by(1.0)
    links.told(Tier.L3, "slow", 1e9, 1e9 / 1e5)
    links.told(Tier.L3, "fast", 1e9, 1e9 / 1e7)

    def cost(source: str, tier: Tier = Tier.L3) -> float:
        held = Residency((Run(0, 30_000, tier, source),))
        prefill = Prefill(WorkerKey("p"), held, Load(), RATES, links.restore, sources=links.sources)
        return score_prefill(TURN, prefill, Fleet((), (), KV_BYTES, True), CostParams()).cost_ms

    assert cost("fast") < cost("unknown") < cost("slow")
    assert cost("fast", Tier.L4) == pytest.approx(cost("", Tier.L4), rel=0.01), "its SSD is the slowest part of the way"
    assert cost("slow", Tier.L4) == pytest.approx(cost("slow"), rel=0.01), "here the network is"


@pytest.mark.parametrize(("size_bytes", "busy_ms"), [(9e17, 1.0), (1e9, 1e300), (math.nan, 5.0), (1e9, math.inf), (-1.0, 5.0)])
def test_what_no_link_can_move_teaches_nothing(size_bytes: float, busy_ms: float) -> None:
    links = off_by(1.0)
    links.told(Tier.L4, "", size_bytes, busy_ms)
    assert links.restore == off_by(1.0).restore
    links.told(Tier.L4, "", 1e9, 1e3)
    assert links.restore[Tier.L4].bytes_per_ms == pytest.approx(1e6)
