"""Place a turn where it is predicted to finish first, with the guards that real deployments needed.

The best prefill and the best decode are found separately (the total is a sum of one's and the other's cost), so a decision is
O(P + D) and still the exact minimum over all pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from costmodel.params import CostParams, PolicyParams
from costmodel.policies.base import decision, require_candidates
from costmodel.score import PrefillScore, decode_side, join, score_decode, score_prefill
from costmodel.terms import compute_ms
from costmodel.values import Decision, Fleet, Load, Prefill, Scored, Turn, WorkerKey

_UNSEEN = -1


class Candidate(Protocol):
    """What the guards read of a `Prefill` or a `Decode`."""

    @property
    def worker(self) -> WorkerKey: ...

    @property
    def load(self) -> Load: ...

    @property
    def inflight_turns(self) -> int: ...


class CostPolicy:
    """Cheapest pair in milliseconds. State: the order in which workers last took a cold turn."""

    name = "cost"

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost
        self._cold_turns = 0
        self._cold_at: dict[WorkerKey, int] = {}

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        chosen = self._disaggregated(turn, fleet, rng) if fleet.disaggregated else self._unified(turn, fleet, rng)
        return decision(self.name, turn, chosen, fleet, self._params, explain)

    def _disaggregated(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Scored:
        params = self._params
        lefts = [score_prefill(turn, prefill, fleet, params) for prefill in fleet.prefills]
        rights = [score_decode(turn, decode, fleet, params) for decode in fleet.decodes]
        costs = self._costs(turn, fleet.prefills, lefts, fleet.reuse_share)
        i = self._choose(costs, fleet.prefills, turn.prefill_before, _is_cold(turn, lefts), rng)
        j = self._choose([right.cost_ms for right in rights], fleet.decodes, turn.decode_before, False, rng)
        return join(fleet.prefills[i], lefts[i], fleet.decodes[j], rights[j])

    def _unified(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Scored:
        params = self._params
        prefills = fleet.prefills
        decodes = [decode_side(prefill, i, fleet) for i, prefill in enumerate(prefills)]
        lefts = [score_prefill(turn, prefill, fleet, params) for prefill in prefills]
        rights = [score_decode(turn, decode, fleet, params) for decode in decodes]
        costs = [
            left + right.cost_ms
            for left, right in zip(self._costs(turn, prefills, lefts, fleet.reuse_share), rights, strict=True)
        ]
        i = self._choose(costs, prefills, turn.prefill_before, _is_cold(turn, lefts), rng)
        return join(prefills[i], lefts[i], decodes[i], rights[i])

    def _costs(self, turn: Turn, prefills: Sequence[Prefill], lefts: Sequence[PrefillScore], reuse_share: float) -> list[float]:
        """What each prefill counts for a choice: its cost, less what a new thread's common prefix would save if it were held.

        Every worker is treated as if it held that prefix. Otherwise the first worker to see a system prompt gets every session
        that begins with it. The price is that each worker computes that prefix once.
        """
        discount = self._params.common_prefix_discount * (1 + self._params.displacement_weight * reuse_share)
        if not discount or not turn.shared_tokens or turn.prefill_before is not None:
            return [left.cost_ms for left in lefts]
        as_if = min(turn.shared_tokens, turn.prompt_tokens - 1)
        return [
            left.cost_ms - discount * _saving(turn, prefill, left, as_if) for prefill, left in zip(prefills, lefts, strict=True)
        ]

    def _choose(
        self,
        costs: list[float],
        candidates: Sequence[Candidate],
        before: WorkerKey | None,
        cold: bool,
        rng: random.Random,
    ) -> int:
        """The guards in order: queue limit, switch margin, never used first, softmax, and last the plain minimum."""
        params = self._params
        if params.waiting_limit:
            costs = _pass_over_saturated(costs, candidates, params.waiting_limit)
        best = min(costs)
        if before is not None and params.switch_margin_ms:
            for i, candidate in enumerate(candidates):
                if candidate.worker == before and costs[i] <= best + params.switch_margin_ms:
                    return i
        near = [i for i, cost in enumerate(costs) if cost <= best + params.near_tie_ms]
        if len(near) == 1:
            i = near[0]
        elif cold and params.never_used_first:
            i = min(near, key=lambda n: (self._cold_order(candidates[n]), costs[n]))
        elif params.softmax_temperature:
            i = _softmax([costs[n] for n in near], near, params, rng)
        else:
            i = _least_in_flight([n for n in near if costs[n] == best], candidates, rng)
        if cold:
            self._remember_cold(candidates[i].worker, len(candidates))
        return i

    def _cold_order(self, candidate: Candidate) -> int:
        return self._cold_at.get(candidate.worker, _UNSEEN)

    def _remember_cold(self, worker: WorkerKey, fleet_size: int) -> None:
        """Kept in order of use; workers long gone fall out at the front."""
        self._cold_turns += 1
        self._cold_at.pop(worker, None)
        self._cold_at[worker] = self._cold_turns
        if len(self._cold_at) > 4 * fleet_size:
            del self._cold_at[next(iter(self._cold_at))]


def _is_cold(turn: Turn, lefts: Sequence[PrefillScore]) -> bool:
    """Whether no worker holds more of the prompt than what it shares with others."""
    return max([left.cut.tokens for left in lefts]) <= turn.shared_tokens


def _saving(turn: Turn, prefill: Prefill, left: PrefillScore, as_if: int) -> float:
    """What `as_if` tokens held would save against the actual cut."""
    if left.cut.tokens >= turn.shared_tokens:
        return 0.0
    return max(0.0, left.cut.compute_ms - compute_ms(prefill.rates, turn.prompt_tokens, as_if))


def _pass_over_saturated(costs: list[float], candidates: Sequence[Candidate], waiting_limit: int) -> list[float]:
    """With every worker over the limit none is passed over: some place is better than none."""
    saturated = [candidate.load.waiting_requests > waiting_limit for candidate in candidates]
    if all(saturated):
        return costs
    return [math.inf if full else cost for cost, full in zip(costs, saturated, strict=True)]


def _softmax(costs: list[float], near: list[int], params: CostParams, rng: random.Random) -> int:
    """p ~ exp(-(cost - min) / ((max - min) T)): range-normalised as in Dynamo, so T has no unit."""
    low = min(costs)
    spread = (max(costs) - low) * params.softmax_temperature
    if spread <= 0:
        return near[rng.randrange(len(near))]
    return rng.choices(near, [math.exp((low - cost) / spread) for cost in costs])[0]


def _least_in_flight(tied: list[int], candidates: Sequence[Candidate], rng: random.Random) -> int:
    """Exact ties go to the least busy and then by lot: always taking the first would pile up on it."""
    if len(tied) == 1:
        return tied[0]
    least = min(candidates[i].inflight_turns for i in tied)
    tied = [i for i in tied if candidates[i].inflight_turns == least]
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]
