"""One prefetch from its plan to its end, and the one table of what may follow what."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.events import FailReason, Trigger
from kvtier.prefetch.layout import Copy

Order = tuple[int, float, int]


class JobState(StrEnum):
    QUEUED = "queued"  # nothing of it moves yet
    FETCHING = "fetching"  # agents bring it to the destination's L3
    READY = "ready"  # it lies there, leased; a warm request may bring it on
    CONSUMED = "consumed"  # a turn has used it
    EXPIRED = "expired"  # too late, or nobody came
    CANCELLED = "cancelled"  # by the caller, or the plan changed
    FAILED = "failed"  # `reason` says why


_ENDS = frozenset((JobState.CONSUMED, JobState.EXPIRED, JobState.CANCELLED, JobState.FAILED))
_LEAVES = frozenset((JobState.EXPIRED, JobState.CANCELLED, JobState.FAILED))
FOLLOWERS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: _LEAVES | {JobState.FETCHING, JobState.READY},  # READY: all of it was there
    JobState.FETCHING: _LEAVES | {JobState.READY},
    JobState.READY: _ENDS,
    **dict.fromkeys(_ENDS, frozenset[JobState]()),
}


class IllegalStep(Exception):
    """A fault of the planner: a state that cannot follow."""


class Job(msgspec.Struct):
    """Mutable; only `advance` changes the state. Bytes are of KV as the target's `kv_bytes_per_token` counts them."""

    id: int
    subject: str
    trigger: Trigger
    worker: WorkerKey
    node: str
    deadline_ms: float  # by which it should be READY: the order of jobs
    expires_ms: float  # when it ends unless it was used
    priority: int = 0
    pending: deque[Copy] = msgspec.field(default_factory=deque)  # not begun, in order of the prompt
    moving: dict[int, Copy] = msgspec.field(default_factory=dict)  # by move
    staged_from: int = 0  # the first token that has to be moved
    held_tokens: int = 0  # leading tokens to lease once READY
    page_tokens: int = 1
    bytes_per_token: float = 1.0
    max_bytes: int = 0
    arrived_tokens: int = 0
    planned_bytes: int = 0
    moved_bytes: int = 0
    late_bytes: int = 0
    reserved_bytes: int = 0  # of the destination's budget
    warm_tokens: int = 0  # to restore by warm requests; 0 = none
    warmed_tokens: int = 0  # so far
    warmed_bytes: int = 0
    warm_odds: float = 0.0  # P(what is warmed is used), before what others like it have taught; 0 where it was not weighed
    pool: str = ""
    warm_at_ms: float | None = None  # not before this; None = not at all
    warm_move: int | None = None
    recalled_from: int = 0  # what the engine had when it was asked to read L3 again
    recalled_tokens: int = 0  # that it was to read behind these; 0 = it was not asked
    recall_useful_tokens: int = 0
    saved_ms: float = 0.0  # of the turn that uses it, as predicted
    cost_ms: float = 0.0
    holds: bool = False  # a `Hold` is out
    wait_until_ms: float = 0.0  # its turn may wait in the gateway so long: later, to compute is quicker
    sent: bool = False  # the turn that will use it is on its way to the worker
    state: JobState = JobState.QUEUED
    reason: FailReason | None = None

    @property
    def ended(self) -> bool:
        return self.state in _ENDS

    @property
    def fetching(self) -> bool:
        """Something of it is still to come."""
        return self.state in (JobState.QUEUED, JobState.FETCHING)

    @property
    def order(self) -> Order:
        """Higher priority first, then the earliest deadline, then the oldest; the last of it is the job's id. Never changes."""
        return (-self.priority, self.deadline_ms, self.id)

    def advance(self, state: JobState, reason: FailReason | None = None) -> None:
        """Raises `IllegalStep`."""
        if state not in FOLLOWERS[self.state]:
            raise IllegalStep(f"job {self.id}: {state.value} cannot follow {self.state.value}")
        self.state, self.reason = state, reason
