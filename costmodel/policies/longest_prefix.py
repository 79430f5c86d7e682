"""The worker that holds most of the prompt, whatever tier it lies in and however busy it is; ties to the least loaded.

This is what UMBP's `umbp_cache_aware` does today by its public description: largest matched prefix, and load only when
nothing matches.
"""

from __future__ import annotations

import random

from costmodel.policies.choice import least
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Fleet, Prefill, Turn


class LongestPrefixPolicy(TwoLegPolicy):
    """Stateless."""

    name = "longest_prefix"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        return least(fleet.prefills, _order, rng)


def _order(prefill: Prefill) -> tuple[float, ...]:
    load = prefill.load
    return (
        -prefill.residency.tokens,
        load.queued_uncached_tokens,
        load.running_requests + load.waiting_requests,
        prefill.inflight_turns,
    )
