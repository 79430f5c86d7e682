"""Place a turn where it is predicted to finish first, with the guards that real deployments needed.

The best prefill and the best decode are found separately (the total is a sum of one's and the other's cost), so a decision is
O(P + D) and still the exact minimum over all pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from costmodel.params import CostParams, Objective, PolicyParams
from costmodel.policies import passing
from costmodel.policies.base import decision, require_candidates
from costmodel.policies.hot_prefixes import HotPrefixes
from costmodel.policies.passing import Candidate
from costmodel.score import DecodeScore, PrefillScore, decode_side, displacing, join, score_decode, score_prefill
from costmodel.terms import compute_ms
from costmodel.values import Decision, Fleet, Prefill, Scored, Turn, WorkerKey

_UNSEEN = -1


class CostPolicy:
    """Cheapest pair in milliseconds. State: the order in which workers last took a cold turn, and how hot prefixes are."""

    name = "cost"

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost
        self._cold_turns = 0
        self._cold_at: dict[WorkerKey, int] = {}
        self._hot = HotPrefixes()

    def without(self, guard: str, off: float | bool) -> CostPolicy:
        """The same with one guard switched off and a memory of its own, to ask what it would have chosen."""
        other = CostPolicy(PolicyParams(msgspec.structs.replace(self._params, **{guard: off})))
        other._cold_turns, other._cold_at, other._hot = self._cold_turns, dict(self._cold_at), self._hot.copy()
        return other

    @property
    def params(self) -> CostParams:
        return self._params

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        lefts = [score_prefill(turn, prefill, fleet, self._params) for prefill in fleet.prefills]
        costs = self._costs(turn, fleet, lefts)
        if turn.prefix is not None and self._params.replication_weight and not self._discounts(turn):
            costs = self._replicated(costs, lefts, self._hot.asked(turn.prefix, now_ms))
        place = self._disaggregated if fleet.disaggregated else self._unified
        return decision(self.name, turn, place(turn, fleet, lefts, costs, rng), fleet, self._params, explain)

    def _disaggregated(
        self, turn: Turn, fleet: Fleet, lefts: list[PrefillScore], costs: list[float], rng: random.Random
    ) -> Scored:
        """Prefill first: it may be chosen by the fastest decode, which is left to it whatever is chosen then."""
        rights = [score_decode(turn, decode, fleet, self._params) for decode in fleet.decodes]
        deadline_ms = self._deadline_ms(turn)
        if deadline_ms is not None:
            fastest_ms = min(right.ttft_ms for right in rights)
            costs = passing.late(costs, [left.ttft_ms + fastest_ms for left in lefts], deadline_ms)
        i = self._choose(costs, fleet.prefills, turn.prefill_before, _is_cold(turn, lefts), rng)
        others = self._decode_costs(rights)
        if deadline_ms is not None:
            others = passing.late(others, [lefts[i].ttft_ms + right.ttft_ms for right in rights], deadline_ms)
        j = self._choose(others, fleet.decodes, turn.decode_before, False, rng)
        return join(fleet.prefills[i], lefts[i], fleet.decodes[j], rights[j])

    def _unified(self, turn: Turn, fleet: Fleet, lefts: list[PrefillScore], costs: list[float], rng: random.Random) -> Scored:
        prefills = fleet.prefills
        decodes = [decode_side(prefill, i, fleet) for i, prefill in enumerate(prefills)]
        rights = [score_decode(turn, decode, fleet, self._params) for decode in decodes]
        costs = [cost + decoding for cost, decoding in zip(costs, self._decode_costs(rights), strict=True)]
        deadline_ms = self._deadline_ms(turn)
        if deadline_ms is not None:
            ttfts_ms = [left.ttft_ms + right.ttft_ms for left, right in zip(lefts, rights, strict=True)]
            costs = passing.late(costs, ttfts_ms, deadline_ms)
        i = self._choose(costs, prefills, turn.prefill_before, _is_cold(turn, lefts), rng)
        return join(prefills[i], lefts[i], decodes[i], rights[i])

    def _deadline_ms(self, turn: Turn) -> float | None:
        return turn.deadline_ms if self._params.objective is Objective.SLO else None

    def _decode_costs(self, rights: Sequence[DecodeScore]) -> list[float]:
        """Of the first token's time decode has only what comes before it."""
        if self._params.objective is Objective.TTFT:
            return [right.ttft_ms for right in rights]
        return [right.cost_ms for right in rights]

    def _costs(self, turn: Turn, fleet: Fleet, lefts: Sequence[PrefillScore]) -> list[float]:
        """What each prefill counts for a choice: its cost, less what a new thread's common prefix would save if it were held.

        Every worker is treated as if it held that prefix. Otherwise the first worker to see a system prompt gets every session
        that begins with it. The price is that each worker computes that prefix once.
        """
        params = self._params
        if not self._discounts(turn):
            return [left.cost_ms for left in lefts]
        discount = params.common_prefix_discount
        as_if = min(turn.shared_tokens, turn.prompt_tokens - 1)
        return [
            left.cost_ms - discount * displacing(prefill.load, fleet, params) * _saving(turn, prefill, left, as_if)
            for prefill, left in zip(fleet.prefills, lefts, strict=True)
        ]

    def _discounts(self, turn: Turn) -> bool:
        return bool(self._params.common_prefix_discount and turn.shared_tokens and turn.prefill_before is None)

    def _replicated(self, costs: list[float], lefts: Sequence[PrefillScore], others: float) -> list[float]:
        """A prefix that `others` have lately asked for as well, and whose holder queues, may be computed a second time: the
        copy counts as free as far as they will share it, up to the wait that this turn has at the holder."""
        holder = max(lefts, key=lambda left: (left.cut.tokens, -left.queue_ms))
        if not holder.queue_ms or not others:
            return costs
        share = self._params.replication_weight * others / (1 + others)
        return [
            cost - share * min(holder.queue_ms, max(0.0, left.cut.compute_ms - holder.cut.compute_ms))
            for cost, left in zip(costs, lefts, strict=True)
        ]

    def _choose(
        self,
        costs: list[float],
        candidates: Sequence[Candidate],
        before: WorkerKey | None,
        cold: bool,
        rng: random.Random,
    ) -> int:
        """The guards in order: queue limit, ramp, switch margin, never used first, softmax, and last the plain minimum."""
        params = self._params
        if params.waiting_limit:
            costs = passing.saturated(costs, candidates, params.waiting_limit)
        if params.ramp_turns:
            costs = passing.ramping(costs, candidates, params.ramp_turns)
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
