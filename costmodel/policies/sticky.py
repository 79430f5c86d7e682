"""A thread stays on the workers that served it; a new thread, or one whose worker has gone, goes where its hash says.

Rendezvous hashing (highest random weight): when a worker goes, only its own threads move.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import xxhash

from costmodel.params import PolicyParams
from costmodel.policies.base import predict, require_candidates
from costmodel.score import decode_side
from costmodel.values import Decision, Decode, Fleet, Prefill, Turn, WorkerKey

_Candidate = TypeVar("_Candidate", Prefill, Decode)


class StickyPolicy:
    """Stateless: what the thread did before comes with the turn."""

    name = "sticky"

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        prefill = _stick(fleet.prefills, turn.thread, turn.prefill_before)
        if fleet.disaggregated:
            decode = _stick(fleet.decodes, turn.thread, turn.decode_before)
        else:
            decode = decode_side(prefill, fleet.prefills.index(prefill), fleet)
        return predict(self.name, turn, prefill, decode, fleet, self._params, explain)


def rendezvous_weight(thread: str, worker: WorkerKey) -> int:
    """Stable across processes and restarts."""
    return xxhash.xxh3_64_intdigest(f"{thread}\0{worker.worker_id}\0{worker.dp_rank}".encode("utf-8", "surrogatepass"))


def _stick(candidates: Sequence[_Candidate], thread: str, before: WorkerKey | None) -> _Candidate:
    if before is not None:
        for candidate in candidates:
            if candidate.worker == before:
                return candidate
    return max(candidates, key=lambda candidate: rendezvous_weight(thread, candidate.worker))
