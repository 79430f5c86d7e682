"""Whom `CostPolicy` passes over while another is left: the saturated, the newcomer that has its share, the too late.

Each rule takes costs and answers with the same ones, infinite for who is passed over. Where that would be everybody it is
nobody: some place is better than none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from costmodel.values import Load, WorkerKey

_NEW_PART = 4  # who has answered less than a fourth of what workers have in the mean is new


class Candidate(Protocol):
    """What the guards read of a `Prefill` or a `Decode`."""

    @property
    def worker(self) -> WorkerKey: ...

    @property
    def load(self) -> Load: ...

    @property
    def inflight_turns(self) -> int: ...

    @property
    def served_turns(self) -> int | None: ...


def saturated(costs: list[float], candidates: Sequence[Candidate], waiting_limit: int) -> list[float]:
    """More requests wait there than `waiting_limit`."""
    return _pass_over(costs, [candidate.load.waiting_requests > waiting_limit for candidate in candidates])


def ramping(costs: list[float], candidates: Sequence[Candidate], ramp_turns: int) -> list[float]:
    """A newcomer's caches are empty, its first forwards slow and its rates a guess: it starts with one turn at once and may
    have one more with every turn that it has answered, up to `ramp_turns`. New is who has answered little beside the others:
    where all began together nobody knows better, and the first to answer so many must not get everybody's turns."""
    counted = [served for each in candidates if (served := each.served_turns) is not None]
    if not counted:
        return costs
    new_below = min(ramp_turns, sum(counted) // (_NEW_PART * len(counted)))
    full = [
        (served := each.served_turns) is not None and served < new_below and each.inflight_turns > served for each in candidates
    ]
    return _pass_over(costs, full) if any(full) else costs


def late(costs: list[float], ttfts_ms: list[float], deadline_ms: float) -> list[float]:
    """The first token is predicted after its deadline. Where it is everywhere, the times themselves are the costs."""
    overdue = [ttft_ms > deadline_ms for ttft_ms in ttfts_ms]
    return ttfts_ms if all(overdue) else _pass_over(costs, overdue)


def _pass_over(costs: list[float], those: list[bool]) -> list[float]:
    left = [math.inf if passed else cost for cost, passed in zip(costs, those, strict=True)]
    return left if min(left) < math.inf else costs
