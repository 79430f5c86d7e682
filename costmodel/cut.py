"""The restore cut: how many leading tokens are brought back from cache, the rest being computed.

Only run boundaries are candidates. The last prompt token is always computed, because the engine needs its logits; rounding to
pages is the caller's, who makes the runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from costmodel.params import CutRule
from costmodel.terms import NO_SOURCES, Leg, add_run, compute_ms, exposed_ms
from costmodel.values import Link, PrefillRates, Residency, Tier

_L1 = Tier.L1
_L2 = Tier.L2
_BEST = CutRule.BEST

# SGLang 0.5.x: L2 is loaded back from 10 tokens on (`load_back_threshold`); L3 is read once 256 tokens of the prompt remain
# behind the local match (`prefetch_threshold`).
LOAD_BACK_MIN_TOKENS = 10
PREFETCH_MIN_TOKENS = 256


class Cut(msgspec.Struct, frozen=True, gc=False):
    """One cut with what it costs. `tier` is the deepest tier that the restored part touches, None when nothing is restored."""

    tokens: int
    tier: Tier | None
    fetch_ms: float
    exposed_ms: float
    compute_ms: float


class Site(msgspec.Struct, frozen=True, gc=False):
    """Where a cut is weighed: one prefill candidate's arithmetic."""

    residency: Residency
    restore: Mapping[Tier, Link]
    rates: PrefillRates
    queue_ms: float
    kv_bytes_per_token: float
    overlap_rho: float
    sources: Mapping[str, Link] = NO_SOURCES


def find_cut(prompt_tokens: int, site: Site, rule: CutRule) -> Cut:
    if not site.residency.runs:
        return no_cut(prompt_tokens, site.rates)
    return best_cut(prompt_tokens, site) if rule is _BEST else engine_cut(prompt_tokens, site)


def no_cut(prompt_tokens: int, rates: PrefillRates) -> Cut:
    """Nothing is restored."""
    return Cut(0, None, 0.0, 0.0, compute_ms(rates, prompt_tokens, 0))


def best_cut(prompt_tokens: int, site: Site) -> Cut:
    """The cheapest of 0 and every restorable run's end; of equals the shortest, which moves the fewest bytes."""
    restore, rates = site.restore, site.rates
    best = no_cut(prompt_tokens, rates)
    best_ms = best.compute_ms
    limit = prompt_tokens - 1
    legs: dict[Leg, float] = {}
    fetch = 0.0
    deepest = _L1
    for run in site.residency.runs:
        tier = run.tier
        start = run.start
        end = min(start + run.tokens, limit)
        if end <= start:
            break
        if tier != _L1:
            if tier not in restore:
                break
            add_run(legs, run, (end - start) * site.kv_bytes_per_token, restore, site.sources)
            fetch = max(legs.values())
            deepest = max(deepest, tier)
        compute = compute_ms(rates, prompt_tokens, end)
        exposed = exposed_ms(legs, site.queue_ms, compute, site.overlap_rho) if legs else 0.0
        if exposed + compute < best_ms:
            best_ms = exposed + compute
            best = Cut(end, deepest, fetch, exposed, compute)
    return best


def engine_cut(prompt_tokens: int, site: Site) -> Cut:
    """What stock SGLang does: restore all it can, except what lies below its thresholds."""
    restore = site.restore
    limit = prompt_tokens - 1
    legs: dict[Leg, float] = {}
    end = 0
    deepest: Tier | None = None
    for run in site.residency.runs:
        tier = run.tier
        run_end = min(run.start + run.tokens, limit)
        tokens = run_end - run.start
        if tokens <= 0:
            break
        if tier != _L1:
            if tier not in restore:
                break
            if tokens < LOAD_BACK_MIN_TOKENS if tier == _L2 else prompt_tokens - run.start < PREFETCH_MIN_TOKENS:
                break
            add_run(legs, run, tokens * site.kv_bytes_per_token, restore, site.sources)
        end = run_end
        if deepest is None or tier > deepest:
            deepest = tier
    compute = compute_ms(site.rates, prompt_tokens, end)
    if not legs:
        return Cut(end, deepest, 0.0, 0.0, compute)
    fetch = max(legs.values())
    return Cut(end, deepest, fetch, exposed_ms(legs, site.queue_ms, compute, site.overlap_rho), compute)
