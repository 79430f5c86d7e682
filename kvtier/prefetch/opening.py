"""Begins jobs: weighs what was laid out, drops the part that does not pay, and puts the rest on the board."""

from __future__ import annotations

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.arrivals import Arrivals
from kvtier.prefetch.benefit import Odds, Worth, weigh_stage, weigh_warm, worthwhile
from kvtier.prefetch.board import Board
from kvtier.prefetch.events import Asked, FailReason, Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import Layout
from kvtier.prefetch.params import Mode
from kvtier.prefetch.view import Target, View

_NOTHING = Worth(0.0, 0.0, 0.0)


class WarmChance(msgspec.Struct, frozen=True, gc=False):
    """When a warm request should be sent, and P(the turn comes here while L1 still has what it brought); `claimed`: before what
    others have taught."""

    at_ms: float
    used: float
    claimed: float


class Plan(msgspec.Struct, frozen=True):
    """`stage_odds` None: too uncertain to move anything between nodes. `until_ms`: when the job ends unless it was used."""

    subject: str
    trigger: Trigger
    layout: Layout
    stage_odds: Odds | None
    deadline_ms: float
    until_ms: float
    warm: WarmChance | None = None
    sent: bool = False


class Opening:
    """`params` are the board's: they may be replaced."""

    def __init__(self, board: Board, arrivals: Arrivals) -> None:
        self._board = board
        self._arrivals = arrivals
        self._next_job = 1

    def new_job(self) -> int:
        job_id = self._next_job
        self._next_job += 1
        return job_id

    def begin(self, plan: Plan, view: View, now_ms: float) -> Job | None:
        """A job if it is worth it and there is room; in a dry run it is only counted."""
        board, params = self._board, self._board.params
        layout, worth = self._best(plan, view, now_ms)
        if not layout.copies and not layout.warm_tokens:
            return None
        if params.mode is Mode.DRY_RUN:
            board.tallies[plan.trigger].dry_jobs += 1
            board.tallies[plan.trigger].dry_bytes += layout.stage_bytes
            return None
        if len(board.active) >= params.max_jobs or not self._has_room(layout, view):
            return None
        job = _job(self.new_job(), plan.subject, plan.trigger, layout, plan.deadline_ms, plan.until_ms)
        job.sent = plan.sent
        job.saved_ms, job.cost_ms = worth.saved_ms, worth.cost_ms
        if plan.warm is not None and layout.warm_tokens:
            job.warm_at_ms, job.warm_odds = plan.warm.at_ms, plan.warm.claimed
        board.open(job, layout.copies, layout.ready_tokens, now_ms, view.node(job.node).stage_bytes)
        return job

    def asked(self, event: Asked, layout: Layout, view: View, now_ms: float) -> Job | None:
        """An explicit call is budgeted, not weighed."""
        if not layout.ready_tokens:
            self.refuse(event, FailReason.NO_COPY)
            return None
        if layout.copies and event.max_bytes and not layout.target.sized:
            self.refuse(event, FailReason.NO_SIZE)
            return None
        if len(self._board.active) >= self._board.params.max_jobs or not self._has_room(layout, view):
            self.refuse(event, FailReason.NO_ROOM)
            return None
        job = _job(event.job, event.subject, Trigger.EXPLICIT, layout, event.deadline_ms, event.deadline_ms)
        job.priority, job.max_bytes = event.priority, event.max_bytes
        job.saved_ms = layout.saved_by_stage_ms + layout.saved_by_warm_ms
        rate = self._arrivals.turns_per_ms(job.worker, now_ms)
        job.cost_ms = weigh_stage(layout, Odds(1.0, 0.0), view).cost_ms + weigh_warm(layout, 1.0, rate).cost_ms
        job.warm_at_ms = now_ms if layout.warm_tokens else None
        self._board.open(job, layout.copies, layout.ready_tokens, now_ms, view.node(job.node).stage_bytes)
        return job

    def sent(self, subject: str, target: Target, ready_tokens: int, now_ms: float) -> Job | None:
        """For a turn that is on its way to the target, whose leading tokens lie where its engine reads them: READY at once."""
        board, params = self._board, self._board.params
        if len(board.active) >= params.max_jobs:
            return None
        until_ms = now_ms + target.queue_ms + params.hold_ms
        job = Job(self.new_job(), subject, Trigger.DECISION, target.worker, target.node, now_ms + target.queue_ms, until_ms)
        job.page_tokens, job.bytes_per_token = target.page_tokens, target.kv_bytes_per_token
        job.pool, job.staged_from, job.sent = target.pool, ready_tokens, True
        board.open(job, (), ready_tokens, now_ms)
        return job

    def refuse(self, event: Asked, reason: FailReason) -> None:
        nowhere = event.worker or WorkerKey("")
        job = Job(event.job, event.subject, Trigger.EXPLICIT, nowhere, "", event.deadline_ms, event.deadline_ms)
        job.advance(JobState.FAILED, reason)
        self._board.tallies[Trigger.EXPLICIT].ended(job, 0)
        self._board.remember(job)

    def _best(self, plan: Plan, view: View, now_ms: float) -> tuple[Layout, Worth]:
        """What of the plan is worth it: its copies and the warm request behind them, or where an engine finds everything by
        itself the warm request alone, whichever gains more. A layout with neither: nothing is."""
        layout, alone = plan.layout, plan.layout.unstaged()
        if layout.copies and not layout.target.reads_remote:
            alone = alone.unwarmed()
        found = self._warmed(plan, alone, _NOTHING, now_ms)
        if layout.copies and plan.stage_odds is not None:
            stage = weigh_stage(layout, plan.stage_odds, view)
            if worthwhile(stage, self._board.params):
                found = max(self._warmed(plan, layout, stage, now_ms), found, key=lambda each: each[1].gain_ms)
        return found

    def _warmed(self, plan: Plan, layout: Layout, before: Worth, now_ms: float) -> tuple[Layout, Worth]:
        """Without its warm request where that does not pay; worth what it is with `before`."""
        if not layout.warm_tokens or plan.warm is None:
            return layout.unwarmed(), before
        worth = weigh_warm(layout, plan.warm.used, self._arrivals.turns_per_ms(layout.target.worker, now_ms))
        return (layout, before.plus(worth)) if worthwhile(worth, self._board.params) else (layout.unwarmed(), before)

    def _has_room(self, layout: Layout, view: View) -> bool:
        """For a page at least, and no page is larger than what may be in flight."""
        page_bytes = layout.target.page_tokens * layout.target.kv_bytes_per_token
        node = layout.target.node
        room = min(self._board.budgets.room(node), self._board.params.chunk_bytes, view.node(node).stage_bytes)
        return not layout.copies or page_bytes <= room


def _job(job_id: int, subject: str, trigger: Trigger, layout: Layout, deadline_ms: float, until_ms: float) -> Job:
    target = layout.target
    job = Job(job_id, subject, trigger, target.worker, target.node, deadline_ms, until_ms)
    job.page_tokens, job.bytes_per_token = target.page_tokens, target.kv_bytes_per_token
    job.warm_tokens, job.pool = layout.warm_tokens, target.pool
    job.staged_from = layout.copies[0].start if layout.copies else layout.ready_tokens
    return job
