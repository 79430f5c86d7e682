"""Whom `CostPolicy` passes over while another is left: the saturated, the newcomer that has its share, the too late.

Each rule takes costs and answers with the same ones, infinite for who is passed over. Where that would be everybody it is
nobody: some place is better than none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from costmodel.values import Load, WorkerKey


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
    have one more with every turn that it has answered, up to `ramp_turns`. Where all are new nobody knows better."""
    full = [
        (served := each.served_turns) is not None and served < ramp_turns and each.inflight_turns > served
        for each in candidates
    ]
    if not any(full) or all((served := each.served_turns) is not None and served < ramp_turns for each in candidates):
        return costs
    return _pass_over(costs, full)


def late(costs: list[float], ttfts_ms: list[float], deadline_ms: float) -> list[float]:
    """The first token is predicted after its deadline. Where it is everywhere, the times themselves are the costs."""
    overdue = [ttft_ms > deadline_ms for ttft_ms in ttfts_ms]
    return ttfts_ms if all(overdue) else _pass_over(costs, overdue)


def _pass_over(costs: list[float], those: list[bool]) -> list[float]:
    left = [math.inf if passed else cost for cost, passed in zip(costs, those, strict=True)]
    return left if min(left) < math.inf else costs
