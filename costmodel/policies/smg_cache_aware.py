"""smg's event-driven `cache_aware`: the longest match wins outright, load only breaks ties.

Uneven load (more than 32 turns and 1.1 times apart) sends to the shortest queue; else the highest overlap, ties to the lower
load; without any overlap the shortest queue. Source: lightseekorg/smg `model_gateway/src/policies/cache_aware.rs` @1053321
(`select_worker_event_driven`, `score_overlap`), defaults of `policies/mod.rs`. Its last tie-break, the size of a worker's
tree, is not heard here: as in Rust's `max_by` the last of equals wins. Decode is power of two, as its PD documentation has
it.
"""

from __future__ import annotations

import random

from costmodel.policies.choice import of_two
from costmodel.policies.imbalance import Imbalance
from costmodel.policies.power_of_two import in_flight
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Decode, Fleet, Prefill, Turn

UNEVEN = Imbalance(absolute=32, relative=1.1)


class SmgCacheAwarePolicy(TwoLegPolicy):
    """Stateless: what workers hold comes with the fleet."""

    name = "smg_cache_aware"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        prefills = fleet.prefills
        uneven = UNEVEN.shortest_queue(prefills)
        if uneven is not None:
            return uneven
        if not any(prefill.residency.tokens for prefill in prefills):
            return min(prefills, key=in_flight)
        return max(reversed(prefills), key=lambda prefill: (prefill.residency.tokens, -prefill.inflight_turns))

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return of_two(fleet.decodes, in_flight, rng)
