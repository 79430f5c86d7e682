"""smg's `least_load`: the worker that drains its tokens first, with a barrier against full KV.

    score = (queued + dispatched since the last report) / throughput + 0.15 s x k / (1 - k)

k is the share of KV in use; what was dispatched counts whole, hits and all, and nothing that is worked off counts before the
next report tells it. Source: lightseekorg/smg
`model_gateway/src/policies/least_load.rs` @3bb34d0, its defaults: 2,000 tokens/s where a backend reports no generation rate
(a prefill worker never does), weight 0.15 s. Ties by lot, where the source takes the first.
"""

from __future__ import annotations

import random

import msgspec

from costmodel.params import PolicyParams
from costmodel.policies.choice import least
from costmodel.policies.two_leg import TwoLegPolicy, without_gone
from costmodel.values import Decision, Decode, Fleet, Prefill, Turn, WorkerKey

THROUGHPUT_TOKENS_PER_S = 2000.0
KV_PRESSURE_WEIGHT_S = 0.15
_MAX_USE = 0.999
_SAME_MS = 0.01  # what rounding makes of one report's time


class _Report(msgspec.Struct):
    """A worker's last one as it was first seen, and the prompt tokens that were sent there since."""

    at_ms: float
    queued_tokens: float
    sent_tokens: int = 0


class LeastLoadPolicy(TwoLegPolicy):
    """State: the last report of each worker."""

    name = "least_load"

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self._reports: dict[WorkerKey, _Report] = {}

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        self._reports = without_gone(self._reports, fleet)
        for prefill in fleet.prefills:
            self._hear(prefill, now_ms)
        for decode in fleet.decodes:
            self._hear(decode, now_ms)
        return super().decide(turn, fleet, now_ms, rng, explain)

    def _hear(self, candidate: Prefill | Decode, now_ms: float) -> None:
        at_ms, known = now_ms - candidate.load.age_ms, self._reports.get(candidate.worker)
        if known is None or at_ms > known.at_ms + _SAME_MS:
            self._reports[candidate.worker] = _Report(at_ms, candidate.load.queued_uncached_tokens)

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        chosen = least(fleet.prefills, self._score, rng)
        self._reports[chosen.worker].sent_tokens += turn.prompt_tokens
        return chosen

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        chosen = least(fleet.decodes, self._score, rng)
        self._reports[chosen.worker].sent_tokens += turn.prompt_tokens
        return chosen

    def _score(self, candidate: Prefill | Decode) -> float:
        load, report = candidate.load, self._reports[candidate.worker]
        use = min(load.kv_tokens_used / load.kv_tokens_capacity, _MAX_USE) if load.kv_tokens_capacity else 0.0
        work = report.queued_tokens + report.sent_tokens
        return work / THROUGHPUT_TOKENS_PER_S + KV_PRESSURE_WEIGHT_S * use / (1 - use)
