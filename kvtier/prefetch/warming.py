"""Warm requests: one at a time a worker, in windows, only while the worker is not behind.

They bring what lies in the node's L3 on to L1, through the engine. What becomes of it there is not the planner's to know.
"""

from __future__ import annotations

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

    def want(self, job: Job) -> bool:
        """Its time has come; False where it has nothing to send."""
        if self.due_ms(job) is None:
            return False
        self._wanted[job.id] = job
        return True

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
        busy = {job.worker for job in self._board.active.values() if job.warm_move is not None}
        for job in sorted(wanted.values(), key=lambda job: job.order):
            if self.due_ms(job) is not None and not job.ended:
                self._warm(job, busy, view, now_ms)
                self._changed.append(job)

    def _warm(self, job: Job, busy: set[WorkerKey], view: View, now_ms: float) -> None:
        params = self._board.params
        if job.worker in busy:
            job.warm_at_ms = now_ms + params.retry_ms
            return
        target = view.target(job.subject, job.worker)
        layout = None if target is None else lay_out(target, view)
        if layout is None or not layout.warm_tokens:  # all of it is in L1, or the worker is gone
            job.warm_at_ms = None
            return
        if self._behind(job, layout.target, now_ms) or not self._fits(job, layout.target.device_tokens):
            job.warm_at_ms = now_ms + _BEHIND_RETRIES * params.retry_ms
            return
        busy.add(job.worker)
        start, end, size = job.warmed_tokens, self._window_end(job), self._window_bytes(job)
        job.warm_move = self._board.new_move(job)
        self._board.moves.append(Warm(job.warm_move, job.id, job.subject, job.worker, end, size, job.expires_ms, start))

    def _behind(self, job: Job, target: Target, now_ms: float) -> bool:
        """Where turns were held lately, more will come before what is warmed is used, and it would be in their way. Explicit
        calls do not wait for that."""
        params = self._board.params
        lately = self._arrivals.since_held_ms(job.worker, now_ms) < _LATELY_MS
        return (lately and job.trigger is not Trigger.EXPLICIT) or target.queue_ms > params.warm_max_queue_ms

    def _fits(self, job: Job, device_tokens: int) -> bool:
        """Whether the worker's L1 has room for it beside what others were warmed to."""
        warmed = sum(
            other.warmed_tokens for other in self._board.active.values() if other.worker == job.worker and other is not job
        )
        return device_tokens <= 0 or warmed + job.warm_tokens <= self._board.params.warm_device_share * device_tokens

    def _window_end(self, job: Job) -> int:
        return min(job.warmed_tokens + self._board.params.warm_window_tokens, job.warm_tokens)

    def _window_bytes(self, job: Job) -> int:
        return int((self._window_end(job) - job.warmed_tokens) * job.bytes_per_token)
