"""The cut against brute force over all run boundaries."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.cut import Site, best_cut, engine_cut, find_cut
from costmodel.params import CutRule
from costmodel.terms import Leg, add_run, compute_ms, exposed_ms, fetch_ms
from costmodel.values import Link, PrefillRates, Residency, Run, Tier

links = st.builds(Link, st.floats(0, 50), st.floats(1, 1e6), st.integers(0, 5))
rates = st.builds(PrefillRates, st.floats(0, 50), st.floats(1e-4, 2), st.floats(0, 1e-4))


@st.composite
def residencies(draw: st.DrawFn) -> Residency:
    pieces = draw(st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(Tier)), max_size=6))
    runs, start = [], 0
    for tokens, tier in pieces:
        runs.append(Run(start, tokens, tier))
        start += tokens
    return Residency(tuple(runs))


@st.composite
def sites(draw: st.DrawFn) -> Site:
    restore = draw(st.dictionaries(st.sampled_from([Tier.L2, Tier.L3, Tier.L4]), links))
    return Site(
        draw(residencies()), restore, draw(rates), draw(st.floats(0, 500)), draw(st.floats(1, 1e5)), draw(st.floats(0, 1))
    )


def total_ms(prompt_tokens: int, cut: int, site: Site) -> float:
    compute = compute_ms(site.rates, prompt_tokens, cut)
    legs: dict[Leg, float] = {}
    for run in site.residency.runs:
        tokens = min(run.tokens, cut - run.start)
        if tokens > 0 and run.tier != Tier.L1:
            if run.tier not in site.restore:
                return math.inf
            add_run(legs, run, tokens * site.kv_bytes_per_token, site.restore, site.sources)
    return exposed_ms(legs, site.queue_ms, compute, site.overlap_rho) + compute


@settings(max_examples=100, deadline=None)
@given(site=sites(), prompt_tokens=st.integers(0, 12_000))
def test_best_cut_is_the_cheapest_boundary(site: Site, prompt_tokens: int) -> None:
    limit = max(0, prompt_tokens - 1)
    boundaries = {0} | {min(run.start + run.tokens, limit) for run in site.residency.runs}
    cheapest = min(total_ms(prompt_tokens, cut, site) for cut in boundaries)
    cut = best_cut(prompt_tokens, site)
    assert cut.tokens in boundaries
    assert cut.exposed_ms + cut.compute_ms <= cheapest * (1 + 1e-9) + 1e-9
    assert abs(total_ms(prompt_tokens, cut.tokens, site) - (cut.exposed_ms + cut.compute_ms)) < 1e-6 * (1 + cheapest)
    assert (cut.tier is None) == (cut.tokens == 0)


@settings(max_examples=100, deadline=None)
@given(site=sites(), prompt_tokens=st.integers(0, 12_000), rule=st.sampled_from(CutRule))
def test_any_cut_leaves_the_last_token_and_touches_only_restorable_tiers(site: Site, prompt_tokens: int, rule: CutRule) -> None:
    cut = find_cut(prompt_tokens, site, rule)
    assert 0 <= cut.tokens <= max(0, prompt_tokens - 1)
    touched = [run.tier for run in site.residency.runs if run.start < cut.tokens]
    assert all(tier == Tier.L1 or tier in site.restore for tier in touched)
    assert cut.tier == max(touched, default=None)
    assert cut.fetch_ms == fetch_ms(site.residency.runs, cut.tokens, site.restore, site.kv_bytes_per_token)


FAST = {Tier.L2: Link(0.1, 1e9), Tier.L3: Link(0.1, 1e9), Tier.L4: Link(0.1, 1e9)}
SLOW_SSD = {**FAST, Tier.L4: Link(0.1, 1.0)}
RATES = PrefillRates(10.0, 0.1)
DEEP = Residency((Run(0, 1000, Tier.L1), Run(1000, 1000, Tier.L2), Run(2000, 1000, Tier.L4)))


def test_a_slow_tier_is_recomputed_by_the_best_cut_and_restored_by_the_engine() -> None:
    site = Site(DEEP, SLOW_SSD, RATES, 0.0, 1000.0, 0.0)
    assert best_cut(4000, site).tokens == 2000
    assert engine_cut(4000, site).tokens == 3000
    assert engine_cut(4000, site).tier is Tier.L4


def test_a_long_queue_hides_a_slow_restore() -> None:
    assert best_cut(4000, Site(DEEP, SLOW_SSD, RATES, 1e7, 1000.0, 0.0)).tokens == 3000


def test_a_fully_cached_prompt_still_computes_one_token() -> None:
    cut = best_cut(3000, Site(DEEP, FAST, RATES, 0.0, 1.0, 0.0))
    assert cut.tokens == 2999
    assert cut.compute_ms == compute_ms(RATES, 3000, 2999)


def test_the_engine_leaves_what_lies_below_its_thresholds() -> None:
    short_host = Residency((Run(0, 1000, Tier.L1), Run(1000, 9, Tier.L2)))
    assert engine_cut(4000, Site(short_host, FAST, RATES, 0.0, 1.0, 0.0)).tokens == 1000
    pool = Residency((Run(0, 1000, Tier.L1), Run(1000, 200, Tier.L3)))
    assert engine_cut(1255, Site(pool, FAST, RATES, 0.0, 1.0, 0.0)).tokens == 1000
    assert engine_cut(1256, Site(pool, FAST, RATES, 0.0, 1.0, 0.0)).tokens == 1200
