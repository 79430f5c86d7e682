"""A hash ring: a thread goes to the first worker clockwise from its key, whatever anyone holds or does.

Source: lightseekorg/smg `model_gateway/src/policies/consistent_hashing.rs` @0a1487d with its 150 virtual nodes a worker; xxh3
instead of blake3. Unlike `sticky` it has no memory: when workers come or go, threads in the affected arcs move.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

import xxhash

from costmodel.params import PolicyParams
from costmodel.policies.choice import Candidate
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.values import Decode, Fleet, Prefill, Turn, WorkerKey

VIRTUAL_NODES = 150
_RINGS_KEPT = 8


class Ring:
    """The sorted positions of one set of workers."""

    def __init__(self, workers: Sequence[WorkerKey]) -> None:
        points = [(position(f"{w.worker_id}\0{w.dp_rank}#{n}"), i) for i, w in enumerate(workers) for n in range(VIRTUAL_NODES)]
        points.sort()
        self._positions = [at for at, _ in points]
        self._owners = [owner for _, owner in points]

    def owner(self, key: str) -> int:
        """Index of the worker that owns `key`."""
        return self._owners[bisect_left(self._positions, position(key)) % len(self._owners)]


class ConsistentHashPolicy(TwoLegPolicy):
    """State: the rings of the last few sets of workers, so that a ring is built only when the set changes."""

    name = "consistent_hash"

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self._rings: dict[tuple[WorkerKey, ...], Ring] = {}

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        return self._owner(turn, fleet.prefills)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return self._owner(turn, fleet.decodes)

    def _owner(self, turn: Turn, candidates: Sequence[Candidate]) -> Candidate:
        workers = tuple(candidate.worker for candidate in candidates)
        ring = self._rings.get(workers)
        if ring is None:
            if len(self._rings) >= _RINGS_KEPT:
                del self._rings[next(iter(self._rings))]
            ring = self._rings[workers] = Ring(workers)
        return candidates[ring.owner(turn.thread)]


def position(key: str) -> int:
    """Stable across processes and restarts."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
