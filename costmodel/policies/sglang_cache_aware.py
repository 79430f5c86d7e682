"""sglang's gateway `cache_aware` over HTTP: an approximate tree of what was routed where, no events.

Uneven load (more than 64 turns and 1.5 times apart) sends to the shortest queue; else, if the best match is more than 0.3 of
the prompt, the worker that it was routed to; else the shortest queue. Source: sgl-project/sglang
`sgl-model-gateway/src/policies/cache_aware.rs` @053b63f (`select_worker`), thresholds of its launcher. The tree itself is the
gateway's record of routed prompts (`Prefill.routed_tokens`), which forgets nothing that an engine has evicted. Decode is
power of two, as its PD documentation has it.
"""

from __future__ import annotations

import random

from costmodel.policies.choice import of_two
from costmodel.policies.imbalance import Imbalance
from costmodel.policies.power_of_two import in_flight
from costmodel.policies.two_leg import TwoLegPolicy, routed_tokens
from costmodel.values import Decode, Fleet, Prefill, Turn

UNEVEN = Imbalance(absolute=64, relative=1.5)
CACHE_THRESHOLD = 0.3


class SglangCacheAwarePolicy(TwoLegPolicy):
    """Stateless: the tree's answer comes with the fleet."""

    name = "sglang_cache_aware"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        prefills = fleet.prefills
        uneven = UNEVEN.shortest_queue(prefills)
        if uneven is not None:
            return uneven
        best = max(prefills, key=routed_tokens)
        matched = routed_tokens(best) / turn.prompt_tokens if turn.prompt_tokens else 0.0
        return best if matched > CACHE_THRESHOLD else min(prefills, key=in_flight)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return of_two(fleet.decodes, in_flight, rng)
