"""The restore cut: how many leading tokens are brought back from cache, the rest being computed.

Only run boundaries are candidates. The last prompt token is always computed, because the engine needs its logits; rounding to
pages is the caller's, who makes the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from costmodel.params import CutRule
from costmodel.terms import add_run, compute_ms
from costmodel.values import Link, PrefillRates, Residency, Tier

_L1 = Tier.L1
_L2 = Tier.L2

# SGLang 0.5.x: L2 is loaded back from 10 tokens on (`load_back_threshold`); L3 is read once 256 tokens of the prompt remain
# behind the local match (`prefetch_threshold`).
LOAD_BACK_MIN_TOKENS = 10
PREFETCH_MIN_TOKENS = 256


class Cut(NamedTuple):
    """One cut with what it costs. `tier` is the deepest tier that the restored part touches, None when nothing is restored."""

    tokens: int
    tier: Tier | None
    fetch_ms: float
    exposed_ms: float
    compute_ms: float


class Site(NamedTuple):
    """Where a cut is weighed: one prefill candidate's arithmetic."""

    residency: Residency
    restore: Mapping[Tier, Link]
    rates: PrefillRates
    queue_ms: float
    kv_bytes_per_token: float
    overlap_rho: float


def find_cut(prompt_tokens: int, site: Site, rule: CutRule) -> Cut:
    return best_cut(prompt_tokens, site) if rule is CutRule.BEST else engine_cut(prompt_tokens, site)


def best_cut(prompt_tokens: int, site: Site) -> Cut:
    """The cheapest of 0 and every restorable run's end; of equals the shortest, which moves the fewest bytes."""
    residency, restore, rates, queue, kv_bytes, rho = site
    best = Cut(0, None, 0.0, 0.0, compute_ms(rates, prompt_tokens, 0))
    best_ms = best.compute_ms
    limit = prompt_tokens - 1
    legs: dict[Tier, float] = {}
    fetch = 0.0
    deepest = _L1
    for run in residency.runs:
        tier = run.tier
        start = run.start
        end = min(start + run.tokens, limit)
        if end <= start:
            break
        if tier != _L1:
            if tier not in restore:
                break
            add_run(legs, tier, (end - start) * kv_bytes, restore)
            fetch = max(legs.values())
            deepest = max(deepest, tier)
        compute = compute_ms(rates, prompt_tokens, end)
        exposed = max(0.0, fetch - queue - rho * compute)
        if exposed + compute < best_ms:
            best_ms = exposed + compute
            best = Cut(end, deepest, fetch, exposed, compute)
    return best


def engine_cut(prompt_tokens: int, site: Site) -> Cut:
    """What stock SGLang does: restore all it can, except what lies below its thresholds."""
    residency, restore, rates, queue, kv_bytes, rho = site
    limit = prompt_tokens - 1
    legs: dict[Tier, float] = {}
    end = 0
    deepest: Tier | None = None
    for run in residency.runs:
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
            add_run(legs, tier, tokens * kv_bytes, restore)
        end = run_end
        if deepest is None or tier > deepest:
            deepest = tier
    fetch = max(legs.values()) if legs else 0.0
    compute = compute_ms(rates, prompt_tokens, end)
    return Cut(end, deepest, fetch, max(0.0, fetch - queue - rho * compute), compute)
