"""AMD Infera's `KvEventAwarePolicy`: missed blocks, weighted by role, plus what is active and what was just sent.

    cost = w (request blocks - hits) + active blocks + recent

w is 20 for prefill, 2 for decode (its "typical production" help text) and 1 for a mixed pool. `recent` is charged with the
blocks that a pick missed and fades by 0.97 a pick. Source: AMD-AGI/Infera `infera/router/policy/kv_event_aware.py` @0ad55a7
and, for `recent`, @5890f7f. It is tier-blind. Active blocks are not shared between requests with a common prefix here, as
they are there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from costmodel.params import PolicyParams
from costmodel.policies.choice import Candidate, least
from costmodel.policies.two_leg import TwoLegPolicy, active_tokens, without_gone
from costmodel.values import Decode, Fleet, Prefill, Turn, WorkerKey

BLOCK_TOKENS = 64
PREFILL_WEIGHT = 20.0
DECODE_WEIGHT = 2.0
MIXED_WEIGHT = 1.0
RECENT_DECAY = 0.97


class InferaPolicy(TwoLegPolicy):
    """State: the missed blocks recently sent to each worker."""

    name = "infera"

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self._recent: dict[WorkerKey, float] = {}

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        self._recent = without_gone(self._recent, fleet)
        weight = PREFILL_WEIGHT if fleet.disaggregated else MIXED_WEIGHT
        return self._pick(turn, fleet.prefills, active_tokens(fleet), weight, rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        tokens = {decode.worker: decode.inflight_tokens for decode in fleet.decodes}
        return self._pick(turn, fleet.decodes, tokens, DECODE_WEIGHT, rng)

    def _pick(
        self, turn: Turn, candidates: Sequence[Candidate], tokens: dict[WorkerKey, int], weight: float, rng: random.Random
    ) -> Candidate:
        """`tokens`: of the turns in flight at each."""

        def order(candidate: Candidate) -> tuple[float, ...]:
            active = tokens[candidate.worker] / BLOCK_TOKENS
            cost = weight * missed_blocks(turn, candidate) + active + self._recent.get(candidate.worker, 0.0)
            return (cost, active)

        chosen = least(candidates, order, rng)
        for worker in self._recent:
            self._recent[worker] *= RECENT_DECAY
        missed = max(1.0, missed_blocks(turn, chosen))  # an unknown prompt counts as one block
        self._recent[chosen.worker] = self._recent.get(chosen.worker, 0.0) + missed
        return chosen


def missed_blocks(turn: Turn, candidate: Prefill | Decode) -> float:
    held = candidate.residency.tokens if isinstance(candidate, Prefill) else candidate.resident_tokens
    return turn.prompt_tokens // BLOCK_TOKENS - min(held, turn.prompt_tokens) // BLOCK_TOKENS
