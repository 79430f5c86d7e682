"""What came of a run, before anything is counted."""

from __future__ import annotations

import msgspec

from bench.simulate.hindsight import Regret
from bench.simulate.served import Served
from costmodel.values import WorkerKey


class Outcome(msgspec.Struct, frozen=True):
    """`unfinished` turns were still running when it was broken off."""

    served: tuple[Served, ...]
    until_ms: float
    unfinished: int
    given_up: int  # by an engine, for want of memory
    moved_bytes: dict[str, float]
    decisions: tuple[tuple[float, str, WorkerKey, WorkerKey], ...]  # time, thread, prefill, decode
    prefetch: dict[str, dict[str, float]] = {}  # by trigger, the planner's own counts
    regrets: tuple[Regret, ...] = ()
    rerouted: int = 0  # turns that the gateway sent again because a worker was lost before their first token
    broken: int = 0  # streams that ended so after it; their clients called again
