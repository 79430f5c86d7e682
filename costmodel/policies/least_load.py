"""smg's `least_load`: the worker that drains its tokens first, with a barrier against full KV.

    score = (queued + dispatched since the last report) / throughput + 0.15 s x k / (1 - k)

k is the share of KV in use; what was dispatched counts whole, hits and all. Source: lightseekorg/smg
`model_gateway/src/policies/least_load.rs` @3bb34d0, its defaults: 2,000 tokens/s where a backend reports no generation rate
(a prefill worker never does), weight 0.15 s. Ties by lot, where the source takes the first.
"""

from __future__ import annotations

import random

from costmodel.params import PolicyParams
from costmodel.policies.choice import least
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Decode, Fleet, Prefill, Turn, WorkerKey

THROUGHPUT_TOKENS_PER_S = 2000.0
KV_PRESSURE_WEIGHT_S = 0.15
_MAX_USE = 0.999


class LeastLoadPolicy(TwoLegPolicy):
    """State: prompt tokens sent to each worker since its last load report."""

    name = "least_load"

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self._sent: dict[WorkerKey, int] = {}
        self._age_ms: dict[WorkerKey, float] = {}

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        chosen = least(fleet.prefills, self._score, rng)
        self._charge(chosen.worker, turn)
        return chosen

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        chosen = least(fleet.decodes, self._score, rng)
        self._charge(chosen.worker, turn)
        return chosen

    def _score(self, candidate: Prefill | Decode) -> float:
        worker, load = candidate.worker, candidate.load
        if load.age_ms < self._age_ms.get(worker, 0.0):  # a report came in between and knows what was sent
            self._sent[worker] = 0
        self._age_ms[worker] = load.age_ms
        use = min(load.kv_tokens_used / load.kv_tokens_capacity, _MAX_USE) if load.kv_tokens_capacity else 0.0
        work = max(load.queued_uncached_tokens, self._sent.get(worker, 0))  # the former knows of own bookings too
        return work / THROUGHPUT_TOKENS_PER_S + KV_PRESSURE_WEIGHT_S * use / (1 - use)

    def _charge(self, worker: WorkerKey, turn: Turn) -> None:
        self._sent[worker] = self._sent.get(worker, 0) + turn.prompt_tokens
