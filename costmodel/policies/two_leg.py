"""A policy that chooses each leg by a rule of its own and predicts the pair with the cost model's terms.

Rivals are written as subclasses: they say which prefill and which decode, this class does the rest. A unified worker is
chosen by the prefill rule alone.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import TypeVar

from costmodel.params import PolicyParams
from costmodel.policies.base import predict, require_candidates
from costmodel.policies.choice import least, outstanding
from costmodel.score import decode_side
from costmodel.values import Decision, Decode, Fleet, Prefill, Turn, WorkerKey

Kept = TypeVar("Kept")
_KEPT_FOR_EACH = 4


class TwoLegPolicy(ABC):
    """Subclasses name themselves and give `_prefill`; the decode leg is the least loaded unless they say otherwise."""

    name: str

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        prefill = self._prefill(turn, fleet, rng)
        if fleet.disaggregated:
            decode = self._decode(turn, fleet, rng)
        else:
            decode = decode_side(prefill, fleet.prefills.index(prefill), fleet)
        return predict(self.name, turn, prefill, decode, fleet, self._params, explain)

    @abstractmethod
    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill: ...

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return least(fleet.decodes, outstanding, rng)


def without_gone(kept: dict[WorkerKey, Kept], fleet: Fleet) -> dict[WorkerKey, Kept]:
    """What a policy keeps of workers, without those that are gone once they are many: for one turn a fleet may lack some."""
    if len(kept) <= _KEPT_FOR_EACH * (len(fleet.prefills) + len(fleet.decodes)):
        return kept
    there = {prefill.worker for prefill in fleet.prefills} | {decode.worker for decode in fleet.decodes}
    return {worker: known for worker, known in kept.items() if worker in there}


def active_tokens(fleet: Fleet) -> dict[WorkerKey, int]:
    """Prompt tokens of the turns in flight at each prefill candidate. A unified worker has a turn until its last token, as its
    decode side counts it. Raises `ValueError` where it has none."""
    if fleet.disaggregated:
        return {prefill.worker: prefill.inflight_tokens for prefill in fleet.prefills}
    return {prefill.worker: decode_side(prefill, i, fleet).inflight_tokens for i, prefill in enumerate(fleet.prefills)}


def routed_tokens(prefill: Prefill) -> int:
    """What an approximate tree knows: prompt tokens sent there before. Where no such record is kept, what is resident."""
    return prefill.residency.tokens if prefill.routed_tokens is None else prefill.routed_tokens
