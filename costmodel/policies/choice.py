"""How a rule of one leg picks among candidates. It knows orders and lots, nothing of what the orders mean."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from costmodel.values import Decode, Prefill

Candidate = TypeVar("Candidate", Prefill, Decode)
Order = float | tuple[float, ...]


def least(candidates: Sequence[Candidate], order: Callable[[Candidate], Order], rng: random.Random) -> Candidate:
    """The least by `order`; equals by lot, since always taking the first piles every cold turn on it."""
    orders = [order(candidate) for candidate in candidates]
    best: Order = min(orders)
    tied = [candidate for candidate, rank in zip(candidates, orders, strict=True) if rank == best]
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]


def of_two(candidates: Sequence[Candidate], order: Callable[[Candidate], Order], rng: random.Random) -> Candidate:
    """Power of two choices: the lesser of two that were drawn; of equals the first drawn."""
    if len(candidates) == 1:
        return candidates[0]
    left, right = rng.sample(candidates, 2)
    return min((left, right), key=order)


def outstanding(candidate: Prefill | Decode) -> tuple[float, ...]:
    """Requests that the engine reports, then the gateway's own."""
    load = candidate.load
    return (load.running_requests + load.waiting_requests, candidate.inflight_turns)
