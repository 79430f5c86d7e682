"""Two workers drawn at random, the one with fewer turns in flight wins.

Source: lightseekorg/smg `model_gateway/src/policies/power_of_two.rs`, as it is without an engine's load reports; the idea is
Mitzenmacher's (IEEE TPDS 2001).
"""

from __future__ import annotations

import random

from costmodel.policies.choice import of_two
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Decode, Fleet, Prefill, Turn


class PowerOfTwoPolicy(TwoLegPolicy):
    """Stateless."""

    name = "power_of_two"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        return of_two(fleet.prefills, in_flight, rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return of_two(fleet.decodes, in_flight, rng)


def in_flight(candidate: Prefill | Decode) -> float:
    """What smg and sglang's gateway call a worker's load: the turns that the gateway has there now."""
    return candidate.inflight_turns
