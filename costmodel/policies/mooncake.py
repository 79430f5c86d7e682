"""Mooncake's Conductor, Algorithm 1: the prefill with the least estimated TTFT, pulling the best prefix where that pays.

    for each instance: if best match / own match < threshold or it cannot pull:  TTFT = T_queue + T_prefill(len, own match)
                       else:  TTFT = T_transfer(best - own) + T_queue + T_prefill(len, best match)

Source: Mooncake, FAST'25 (arXiv 2407.00079), section 6.1. `kvcache_balancing_threshold` has no published value; 1 lets every
longer match be weighed. Pulling needs a shared pool: a link for L3. Rejection by SLO is left out, since this contract places
every turn. Decode is the least predicted time between tokens, as the paper's load-balancing by TBT, with all that waits in
the batch: its engine knows no most of running requests.
"""

from __future__ import annotations

import random

from costmodel.policies.choice import least
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.terms import compute_ms, link_ms, queue_ms
from costmodel.values import Decode, Fleet, Prefill, Tier, Turn

BALANCING_THRESHOLD = 1.0


class MooncakePolicy(TwoLegPolicy):
    """Stateless."""

    name = "mooncake"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        best = min(max(prefill.residency.tokens for prefill in fleet.prefills), turn.prompt_tokens)
        return least(fleet.prefills, lambda prefill: ttft_ms(turn, prefill, best, fleet.kv_bytes_per_token), rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return least(fleet.decodes, lambda decode: (tbt_ms(decode), decode.inflight_turns), rng)


def ttft_ms(turn: Turn, prefill: Prefill, best_tokens: int, kv_bytes_per_token: float) -> float:
    """One instance's estimate, the longest match anywhere being `best_tokens`."""
    own = min(prefill.residency.tokens, turn.prompt_tokens)
    queue = queue_ms(prefill.load, prefill.rates)
    pool = prefill.restore.get(Tier.L3)
    if pool is None or best_tokens <= BALANCING_THRESHOLD * own:
        return queue + compute_ms(prefill.rates, turn.prompt_tokens, own)
    transfer = link_ms(pool, (best_tokens - own) * kv_bytes_per_token)
    return transfer + queue + compute_ms(prefill.rates, turn.prompt_tokens, best_tokens)


def tbt_ms(decode: Decode) -> float:
    """Between two tokens once this turn and all that are there have joined."""
    turns = decode.load.running_requests + decode.load.waiting_requests + 1
    return decode.rates.itl_base_ms + decode.rates.itl_ms_per_running * turns
