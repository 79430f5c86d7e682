"""Warm requests: one at a time a worker, in windows, only while the worker is not behind.

They bring what lies in the node's L3 on to L1, through the engine. What becomes of it there is not the planner's to know.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.arrivals import Arrivals
from kvtier.prefetch.board import Board
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import lay_out
from kvtier.prefetch.moves import Warm
from kvtier.prefetch.view import Target, View

_LATELY_MS = 120_000.0  # 20 s left p90 and p99 of a busy hour above those without warm requests
_BEHIND_RETRIES = 10  # of `retry_ms`, until a worker that was behind is looked at again
_LOOKED_AT = 64  # jobs that wait so are looked at each by itself; of more that would be most of what a gateway computes
_RETRIED_AT = 128  # jobs that run; where they are more those that wait for another's warm request wait longer


class _Floor(msgspec.Struct):
    """What the workers are at, for one look at the jobs that want something of them."""

    busy: set[WorkerKey]
    behind: set[tuple[WorkerKey, bool]] = msgspec.field(default_factory=set)  # for explicit calls, or for others
    device_tokens: dict[WorkerKey, int] = msgspec.field(default_factory=dict)
    warmed: Counter[WorkerKey] = msgspec.field(default_factory=Counter)  # tokens in L1, not yet used
    waiting: int = 0  # jobs, now or soon
    surveyed: bool = False  # the last two are known

    @property
    def crowded(self) -> bool:
        return self.waiting > _LOOKED_AT


class Warming:
    def __init__(self, board: Board, arrivals: Arrivals) -> None:
        self._board = board
        self._arrivals = arrivals
        self._wanted: dict[int, Job] = {}  # READY jobs whose time has come, in order
        self._changed: list[Job] = []

    def due_ms(self, job: Job) -> float | None:
        """When the job next wants a warm request; None while one runs, or where none is left to send."""
        waits = job.state is JobState.READY and job.warm_move is None and job.warmed_tokens < job.warm_tokens
        return job.warm_at_ms if waits else None

    def want(self, job: Job) -> None:
        """Its time has come, if it has something to send."""
        if self.due_ms(job) is not None:
            self._wanted[job.id] = job

    def done(self, job: Job, moved_bytes: int) -> None:
        if job.sent:  # its turn was before it: all that it was for is done
            self._board.drop_warm(job, cancel=False)
            return
        moved = max(0, min(moved_bytes, self._window_bytes(job)))
        job.warmed_tokens = self._window_end(job)
        job.warmed_bytes += moved
        self._board.tallies[job.trigger].warmed_bytes += moved
        self._board.drop_warm(job, cancel=False)

    def failed(self, job: Job) -> None:
        """What lies in L3 stays of use; the engine is not asked again."""
        self._board.drop_warm(job, cancel=False)
        job.warm_at_ms = None

    def take_changed(self) -> list[Job]:
        """Jobs whose `due_ms` is another one now."""
        changed, self._changed = self._changed, []
        return changed

    def pump(self, view: View, now_ms: float) -> None:
        wanted, self._wanted = self._wanted, {}
        if not wanted:
            return
        floor = _Floor({job.worker for job in self._board.active.values() if job.warm_move is not None})
        for job in sorted(wanted.values(), key=lambda job: job.order):
            if self.due_ms(job) is not None and not job.ended:
                self._warm(job, floor, view, now_ms)
                self._changed.append(job)

    def _survey(self, floor: _Floor, now_ms: float) -> None:
        """Once a look, and only if somebody is free."""
        if floor.surveyed:
            return
        floor.surveyed, soon_ms = True, now_ms + _BEHIND_RETRIES * self._board.params.retry_ms
        for job in self._board.active.values():
            floor.warmed[job.worker] += job.warmed_tokens
            due_ms = self.due_ms(job)
            floor.waiting += due_ms is not None and due_ms <= soon_ms

    def _warm(self, job: Job, floor: _Floor, view: View, now_ms: float) -> None:
        if job.worker in floor.busy:
            job.warm_at_ms = now_ms + self._board.params.retry_ms * max(1.0, len(self._board.active) / _RETRIED_AT)
            return
        self._survey(floor, now_ms)
        if floor.crowded and self._in_vain(job, floor):
            job.warm_at_ms = self._later(floor, now_ms)
            return
        target = view.target(job.subject, job.worker)
        layout = None if target is None else lay_out(target, view)
        if layout is None or not layout.warm_tokens:  # all of it is in L1, or the worker is gone
            job.warm_at_ms = None
            return
        floor.device_tokens[job.worker] = layout.target.device_tokens
        if self._behind(job, layout.target, now_ms):
            floor.behind.add((job.worker, _is_asked(job)))
            job.warm_at_ms = self._later(floor, now_ms)
        elif not self._fits(job, floor):
            job.warm_at_ms = self._later(floor, now_ms)
        else:
            floor.busy.add(job.worker)
            self._send(job)

    def _send(self, job: Job) -> None:
        start, end, size = job.warmed_tokens, self._window_end(job), self._window_bytes(job)
        job.warm_move = self._board.new_move(job)
        self._board.moves.append(Warm(job.warm_move, job.id, job.subject, job.worker, end, size, job.expires_ms, start))

    def _later(self, floor: _Floor, now_ms: float) -> float:
        """When a worker that was behind is looked at again; for many jobs at once."""
        pause_ms = _BEHIND_RETRIES * self._board.params.retry_ms
        return (now_ms // pause_ms + 1) * pause_ms if floor.crowded else now_ms + pause_ms

    def _in_vain(self, job: Job, floor: _Floor) -> bool:
        """What was seen for another job says so."""
        return (job.worker, _is_asked(job)) in floor.behind or not self._fits(job, floor)

    def _behind(self, job: Job, target: Target, now_ms: float) -> bool:
        """Where turns were held lately, more will come before what is warmed is used, and it would be in their way. Explicit
        calls do not wait for that."""
        params = self._board.params
        lately = self._arrivals.since_held_ms(job.worker, now_ms) < _LATELY_MS
        return (lately and not _is_asked(job)) or target.queue_ms > params.warm_max_queue_ms

    def _fits(self, job: Job, floor: _Floor) -> bool:
        """Whether the worker's L1 has room for it beside what others were warmed to."""
        device_tokens, others = floor.device_tokens.get(job.worker, 0), floor.warmed[job.worker] - job.warmed_tokens
        return device_tokens <= 0 or others + job.warm_tokens <= self._board.params.warm_device_share * device_tokens

    def _window_end(self, job: Job) -> int:
        return min(job.warmed_tokens + self._board.params.warm_window_tokens, job.warm_tokens)

    def _window_bytes(self, job: Job) -> int:
        return int((self._window_end(job) - job.warmed_tokens) * job.bytes_per_token)


def _is_asked(job: Job) -> bool:
    return job.trigger is Trigger.EXPLICIT
