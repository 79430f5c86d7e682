"""Each worker in turn, blind to everything: the baseline that load balancers are measured against."""

from __future__ import annotations

import random

from costmodel.params import PolicyParams
from costmodel.policies.base import predict, require_candidates
from costmodel.score import decode_side
from costmodel.values import Decision, Fleet, Turn


class RoundRobinPolicy:
    """State: one counter a leg, as the gateways that keep a policy for each pool have it."""

    name = "round_robin"

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost
        self._next_prefill = 0
        self._next_decode = 0

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        i = self._next_prefill % len(fleet.prefills)
        self._next_prefill = i + 1
        prefill = fleet.prefills[i]
        if not fleet.disaggregated:
            return predict(self.name, turn, prefill, decode_side(prefill, i, fleet), fleet, self._params, explain)
        j = self._next_decode % len(fleet.decodes)
        self._next_decode = j + 1
        return predict(self.name, turn, prefill, fleet.decodes[j], fleet, self._params, explain)
