"""The four-term score of UMBP's scheduler RFC, highest wins.

    score = alpha x sum over tiers (matched tokens x tier speedup)
            - beta x queue tokens - gamma x tier pressure - delta x fetch ETA

Source: sgl-project/sglang RFC #27898 (open). It publishes no weights. Here every term is brought to tokens and weighs 1:
pressure is the share of KV in use times the prompt, the fetch ETA the tokens that the worker would compute meanwhile. Tier
speedups are those of the public EmbeddedLLM `MoriCacheAwareRouter` (HBM 1.0, DRAM 0.7, SSD 0.2); the pool is DRAM. Decode is
by load.
"""

from __future__ import annotations

import random

from costmodel.policies.choice import least
from costmodel.policies.llm_d import kv_use
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.terms import fetch_ms
from costmodel.values import Fleet, Prefill, Tier, Turn

ALPHA = BETA = GAMMA = DELTA = 1.0
SPEEDUP = {Tier.L1: 1.0, Tier.L2: 0.7, Tier.L3: 0.7, Tier.L4: 0.2}


class UmbpRfcPolicy(TwoLegPolicy):
    """Stateless."""

    name = "umbp_rfc"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        return least(fleet.prefills, lambda prefill: -score(turn, prefill, fleet.kv_bytes_per_token), rng)


def score(turn: Turn, prefill: Prefill, kv_bytes_per_token: float) -> float:
    """In tokens."""
    runs = prefill.residency.runs
    matched = sum(run.tokens * SPEEDUP[run.tier] for run in runs)
    pressure = kv_use(prefill) * turn.prompt_tokens
    eta_ms = fetch_ms(runs, prefill.residency.tokens, prefill.restore, kv_bytes_per_token)
    eta_tokens = eta_ms / prefill.rates.ms_per_token if prefill.rates.ms_per_token > 0 else 0.0
    return ALPHA * matched - BETA * prefill.load.queued_uncached_tokens - GAMMA * pressure - DELTA * eta_tokens
