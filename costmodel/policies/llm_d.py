"""llm-d's inference scheduler with precise prefixes: weighted scores between 0 and 1, highest wins.

    unified: 2 x prefix + 1 x (1 - KV use) + 1 x queue;    a PD pool's legs: 2 x prefix + 1 x queue
    prefix = sum of tier weights over the leading blocks / blocks;    queue = (max - waiting) / (max - min), 1 if all are equal

Ties by lot (max-score-picker). Source: llm-d/llm-d-inference-scheduler `deploy/config/epp-precise-prefix-cache-config.yaml`
@17d999e and `pd-epp-config.yaml` @0bb9fa8; tier weights of llm-d-kv-cache `pkg/kvcache` @7be76e1: device 1.0, host 0.8, and
1.0 for any medium not in its map, which pool and disk media of SGLang are not. Speculative indexing is off by default.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from costmodel.policies.choice import Candidate, least
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Decode, Fleet, Prefill, Residency, Tier, Turn

TIER_WEIGHT = {Tier.L1: 1.0, Tier.L2: 0.8, Tier.L3: 1.0, Tier.L4: 1.0}
PREFIX_WEIGHT = 2.0
QUEUE_WEIGHT = 1.0
KV_WEIGHT = 1.0


class LlmDPolicy(TwoLegPolicy):
    """Stateless."""

    name = "llm_d"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        queue = queue_scores(fleet.prefills)

        def score(prefill: Prefill) -> float:
            total = PREFIX_WEIGHT * prefix_score(turn, prefill.residency) + QUEUE_WEIGHT * queue[prefill.load.waiting_requests]
            return total if fleet.disaggregated else total + KV_WEIGHT * (1 - kv_use(prefill))

        return least(fleet.prefills, lambda prefill: -score(prefill), rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        queue = queue_scores(fleet.decodes)

        def score(decode: Decode) -> float:
            held = decode.resident_tokens / turn.prompt_tokens if turn.prompt_tokens else 0.0
            return PREFIX_WEIGHT * held + QUEUE_WEIGHT * queue[decode.load.waiting_requests]

        return least(fleet.decodes, lambda decode: -score(decode), rng)


def prefix_score(turn: Turn, residency: Residency) -> float:
    weighted = sum(TIER_WEIGHT[run.tier] * run.tokens for run in residency.runs)
    return weighted / turn.prompt_tokens if turn.prompt_tokens else 0.0


def queue_scores(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Score of every waiting count that occurs."""
    waiting = {candidate.load.waiting_requests for candidate in candidates}
    low, high = min(waiting), max(waiting)
    return {count: (high - count) / (high - low) if high > low else 1.0 for count in waiting}


def kv_use(candidate: Prefill | Decode) -> float:
    load = candidate.load
    return load.kv_tokens_used / load.kv_tokens_capacity if load.kv_tokens_capacity else 0.0
