"""The worker that holds most of the prompt, whatever tier it lies in and however busy it is; ties to the least loaded.

This is what UMBP's `umbp_cache_aware` does today by its public description: largest matched prefix, and load only when nothing
matches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from costmodel.params import PolicyParams
from costmodel.policies.base import predict, require_candidates
from costmodel.score import decode_side
from costmodel.values import Decision, Decode, Fleet, Prefill, Turn

_Candidate = TypeVar("_Candidate", Prefill, Decode)


class LongestPrefixPolicy:
    """Stateless."""

    name = "longest_prefix"

    def __init__(self, params: PolicyParams) -> None:
        self._params = params.cost

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        require_candidates(fleet)
        prefill = _first(fleet.prefills, _prefill_order, rng)
        if fleet.disaggregated:
            decode = _first(fleet.decodes, _decode_order, rng)
        else:
            decode = decode_side(prefill, fleet.prefills.index(prefill), fleet)
        return predict(self.name, turn, prefill, decode, fleet, self._params, explain)


def _prefill_order(prefill: Prefill) -> tuple[float, ...]:
    load = prefill.load
    return (
        -prefill.residency.tokens,
        load.queued_uncached_tokens,
        load.running_requests + load.waiting_requests,
        prefill.inflight_turns,
    )


def _decode_order(decode: Decode) -> tuple[float, ...]:
    return (decode.load.running_requests + decode.load.waiting_requests, decode.inflight_turns)


def _first(
    candidates: Sequence[_Candidate], order: Callable[[_Candidate], tuple[float, ...]], rng: random.Random
) -> _Candidate:
    """The least by `order`; equals by lot, since always taking the first piles every cold turn on it."""
    orders = [order(candidate) for candidate in candidates]
    least = min(orders)
    tied = [candidate for candidate, rank in zip(candidates, orders, strict=True) if rank == least]
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]
