"""NVIDIA Dynamo's KV router: blocks still to compute, with credit by tier, plus blocks being decoded.

    prefill = max(0, active prefill blocks + prompt blocks - (1.0 device + 0.75 host + 0.25 disk) overlap blocks)
    cost    = 1.0 x prefill + active decode blocks + 0.0 x active requests

Lowest cost, ties by reservoir. In a PD pool the prefill router does not track decode blocks and the decode router gives no
overlap credit, so it is load alone. Source: ai-dynamo/dynamo `lib/kv-router/src/scheduling/selector/default.rs` @07a6c9c
(`worker_logit`), weights of `scheduling/config.rs` @0243c51 (`overlap_score_credit`, `host_cache_hit_weight`,
`disk_cache_hit_weight`, temperature 0, credit decay 0), `prefill_router/types.rs` for PD. A shared pool (L3) counts 0.5 of
what lies beyond the device (`shared_cache_multiplier` with hicache).
"""

from __future__ import annotations

import random

from costmodel.policies.choice import least
from costmodel.policies.two_leg import TwoLegPolicy, active_tokens
from costmodel.values import Decode, Fleet, Prefill, Residency, Tier, Turn

BLOCK_TOKENS = 64
CREDIT = {Tier.L1: 1.0, Tier.L2: 0.75, Tier.L3: 0.5, Tier.L4: 0.25}


class DynamoPolicy(TwoLegPolicy):
    """Stateless: active sequences come with the fleet."""

    name = "dynamo"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        active = active_tokens(fleet)

        def cost(prefill: Prefill) -> float:
            raw = prefill.load.queued_uncached_tokens + turn.prompt_tokens
            blocks = max(0.0, raw / BLOCK_TOKENS - credit_blocks(prefill.residency))
            return blocks if fleet.disaggregated else blocks + decode_blocks(active[prefill.worker], turn)

        return least(fleet.prefills, cost, rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return least(fleet.decodes, lambda decode: decode_blocks(decode.inflight_tokens, turn), rng)


def credit_blocks(residency: Residency) -> float:
    """Overlap in blocks, each worth its tier's weight."""
    return sum(CREDIT[run.tier] * run.tokens for run in residency.runs) / BLOCK_TOKENS


def decode_blocks(active: int, turn: Turn) -> float:
    """Blocks of the sequences of `active` tokens and of this one."""
    return (active + turn.prompt_tokens) / BLOCK_TOKENS
