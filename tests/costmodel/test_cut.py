"""The cut against brute force over all run boundaries."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.cut import Site, best_cut, engine_cut, find_cut
from costmodel.params import CutRule
from costmodel.terms import compute_ms, fetch_ms
from costmodel.values import Link, PrefillRates, Residency, Run, Tier

links = st.builds(Link, st.floats(0, 50), st.floats(1, 1e6), st.integers(0, 5))
rates = st.builds(PrefillRates, st.floats(0, 50), st.floats(1e-4, 2), st.floats(0, 1e-4), st.just(0.0), st.floats(0, 1))


@st.composite
def residencies(draw: st.DrawFn) -> Residency:
    pieces = draw(st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(Tier), st.sampled_from(["", "n", "m"])), max_size=6))
    runs, start = [], 0
    for tokens, tier, node in pieces:
        runs.append(Run(start, tokens, tier, node if tier in (Tier.L3, Tier.L4) else ""))
        start += tokens
    return Residency(tuple(runs))


@st.composite
def sites(draw: st.DrawFn) -> Site:
    restore = draw(st.dictionaries(st.sampled_from([Tier.L2, Tier.L3, Tier.L4]), links))
    return Site(
        draw(residencies()),
        restore,
        draw(rates),
        draw(st.floats(0, 500)),
        draw(st.floats(1, 1e5)),
        draw(st.floats(0, 1)),
        draw(st.dictionaries(st.sampled_from(["n", "m"]), links)),
    )


def moving_ms(link: Link, tokens: int, site: Site) -> float:
    return link.latency_ms + tokens * site.kv_bytes_per_token * (1 + link.active_flows) / link.bytes_per_ms


def total_ms(prompt_tokens: int, cut: int, site: Site) -> float:
    """By docs/cost-model.md, with nothing of the code's own arithmetic."""
    linear, quadratic, cached = site.rates.ms_per_token, site.rates.ms_per_token2, site.rates.ms_per_cached_token
    computing = linear * (prompt_tokens - cut) + quadratic * (prompt_tokens**2 - cut**2)
    compute = site.rates.base_ms + computing + cached * cut
    host = 0.0
    deep: dict[object, float] = {}
    for run in site.residency.runs:
        tokens = min(run.tokens, cut - run.start)
        if tokens <= 0 or run.tier is Tier.L1:
            continue
        if run.tier not in site.restore:
            return math.inf
        own, node = moving_ms(site.restore[run.tier], tokens, site), site.sources.get(run.source)
        if run.tier is Tier.L2:
            host += own
            continue
        host += moving_ms(site.restore[Tier.L2], tokens, site) if Tier.L2 in site.restore else 0.0
        passed = {run.tier: own} if node is None else {run.source: moving_ms(node, tokens, site)}
        if node is not None and run.tier is Tier.L4:
            passed[run.tier, run.source] = own
        for leg, busy_ms in passed.items():
            deep[leg] = deep.get(leg, 0.0) + busy_ms
    return max(0.0, max(deep.values(), default=0.0) - site.queue_ms) + max(0.0, host - site.overlap_rho * compute) + compute


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
    assert cut.fetch_ms == fetch_ms(site.residency.runs, cut.tokens, site.restore, site.kv_bytes_per_token, site.sources)


def test_of_equal_cuts_the_shortest_moves_the_fewest_bytes() -> None:
    free = PrefillRates(10.0, 0.0)
    assert best_cut(4000, Site(DEEP, FAST, free, 1e7, 1.0, 1.0)).tokens == 0


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
