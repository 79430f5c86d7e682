"""The planner: hears events, weighs, and answers with moves. The package's page says what each of them means.

Keeps state, never a clock. Event order of one thread is taken as it comes; what makes no sense in it is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.benefit import Odds, weigh, worthwhile
from kvtier.prefetch.board import Board
from kvtier.prefetch.events import Event, FailReason, Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import Layout, lay_out
from kvtier.prefetch.moves import Move
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.prefetch.reentry import ReentryModel
from kvtier.prefetch.survival import Survival
from kvtier.prefetch.tally import Tally
from kvtier.prefetch.timers import Timers
from kvtier.prefetch.view import Target, View
from kvtier.prefetch.warming import Warming
from kvtier.prefetch.watches import RESUMED_TOOL, Watch, Watches

_PUMP = 0  # the timer key of waiting chunks; jobs go by their ids, threads by their names
_GROWTH = 2.0  # a thread that was looked at in vain is looked at again after so many times its gap
_DEADLINE_SHARE = 0.25  # a job should be ready before more than this share of the threads like it are back


class Planner:
    """`plan` for every event, and with a `Tick` at `next_ms` at the latest."""

    def __init__(self, params: PrefetchParams | None = None, model: ReentryModel | None = None) -> None:
        self._params = params or PrefetchParams()
        self.model = model or ReentryModel(self._params.max_threads)
        self._board = Board(self._params)
        self._warming = Warming(self._board)
        self._watches = Watches(self._params.max_threads)
        self._timers: Timers[str | int] = Timers()
        self._next_job = 1

    @property
    def params(self) -> PrefetchParams:
        return self._params

    @property
    def next_ms(self) -> float | None:
        return self._timers.next_ms

    @property
    def tallies(self) -> Mapping[Trigger, Tally]:
        return self._board.tallies

    @property
    def active_jobs(self) -> int:
        return len(self._board.active)

    @property
    def watched_threads(self) -> int:
        return len(self._watches)

    @property
    def board(self) -> Board:
        """For those who look, not for those who act."""
        return self._board

    def job(self, job_id: int) -> Job | None:
        return self._board.job(job_id)

    def new_job(self) -> int:
        """A fresh id, for `Asked`."""
        job_id = self._next_job
        self._next_job += 1
        return job_id

    def replace(self, params: PrefetchParams, now_ms: float) -> list[Move]:
        """From now on with other params; switched off, everything that runs is taken back."""
        self._params = self._board.params = params
        self._board.budgets.replace(params)
        if params.mode is not Mode.ON:
            for job in list(self._board.active.values()):
                self._board.end(job, JobState.CANCELLED)
        return self._outcome(now_ms)

    def plan(self, event: Event, view: View, now_ms: float) -> list[Move]:
        self._hear(event, view, now_ms)
        for key in self._timers.due(now_ms):
            if isinstance(key, str):
                self._thread_is_due(key, view, now_ms)
            elif key != _PUMP:
                self._job_is_due(key, now_ms)
        if self._board.active:
            self._pump(view, now_ms)
        return self._outcome(now_ms)

    def _hear(self, event: Event, view: View, now_ms: float) -> None:
        board = self._board
        match event:
            case ev.Tick():
                pass
            case ev.Sent():
                self._sent(event, view, now_ms)
            case ev.Served():
                self._served(event, now_ms)
            case ev.Ended():
                self._ended(event, now_ms)
            case ev.ToolClosed():
                self._tool_closed(event, now_ms)
            case ev.MoveEnded():
                self._move_ended(event, now_ms)
            case ev.MoveFailed():
                self._move_failed(event, now_ms)
            case ev.Progressed():
                board.progressed(event.move, event.moved_bytes)
            case ev.Asked():
                self._asked(event, view, now_ms)
            case ev.CancelJob():
                self._cancel(board.active.get(event.job))
            case ev.Gone():
                self._gone(event)
            case ev.Resumed():
                self._resumed(event, view, now_ms)
            case ev.Drained():
                self._drained(event.worker, view, now_ms)
            case ev.ScaledOut():
                self._scaled_out(event.worker, view, now_ms)
            case ev.NodeLost():
                board.node_lost(event.node, now_ms)
            case ev.EngineRestarted():
                board.engine_restarted(event.worker)
            case ev.DemandWaits():
                board.yield_link(event.path, now_ms)

    # the life of a thread

    def _ended(self, event: ev.Ended, now_ms: float) -> None:
        watch = self._touch(event.thread, event.worker)
        watch.client, watch.tool, watch.idle_since_ms = event.client or watch.client, event.tool, now_ms
        watch.trigger = Trigger.TOOL_CALL if event.tool else Trigger.TURN_END
        watch.seen_changes, watch.spent = None, False
        self._await(watch, now_ms)

    def _tool_closed(self, event: ev.ToolClosed, now_ms: float) -> None:
        watch = self._touch(event.thread, event.worker)
        watch.client, watch.tool = event.client or watch.client, event.tool
        if watch.idle_since_ms is None:
            watch.idle_since_ms, watch.trigger, watch.spent = now_ms, Trigger.TOOL_CALL, False
            self._await(watch, now_ms)

    def _resumed(self, event: ev.Resumed, view: View, now_ms: float) -> None:
        watch = self._watches.get(event.thread)
        if watch is None or watch.idle_since_ms is None:
            return
        watch.tool, watch.idle_since_ms, watch.trigger, watch.spent = RESUMED_TOOL, now_ms, Trigger.RESUME, False
        watch.seen_changes = None
        self._consider(watch, view, now_ms)

    def _gone(self, event: ev.Gone) -> None:
        self._cancel(self._board.of_subject(event.thread))
        self._timers.cancel(event.thread)
        watch = self._watches.drop(event.thread)
        if watch is not None and event.reason is not ev.GoneReason.COMPACTED:
            self.model.lost(watch.thread, watch.tool, watch.client)
        self.model.forget(event.thread)

    def _sent(self, event: ev.Sent, view: View, now_ms: float) -> None:
        watch = self._touch(event.thread, event.worker)
        watch.client = event.client or watch.client
        if watch.idle_since_ms is not None:
            self.model.returned(watch.thread, watch.tool, watch.client, now_ms - watch.idle_since_ms)
            watch.idle_since_ms = None
        self._timers.cancel(event.thread)
        job = self._board.of_subject(event.thread)
        if job is None:
            self._decide(watch, view, now_ms)
        elif job.worker == event.worker or self._node_of(event, view) == job.node:
            self._turn_comes(job, view, now_ms)
        else:  # the plan is revised: it went elsewhere
            self._cancel(job)
            self._decide(watch, view, now_ms)

    def _node_of(self, event: ev.Sent, view: View) -> str | None:
        target = view.target(event.thread, event.worker)
        return None if target is None else target.node

    def _turn_comes(self, job: Job, view: View, now_ms: float) -> None:
        """What is missing may still come while the turn queues; the rest is late. A warm request would only be in its way."""
        tally = self._board.tallies[job.trigger]
        tally.late_bytes += max(0, job.planned_bytes - job.moved_bytes) if job.state is not JobState.READY else 0
        job.sent, job.warm_at_ms = True, None
        job.expires_ms = max(job.expires_ms, now_ms + self._params.hold_ms)  # it may queue there
        self._follow(job)
        self._board.drop_warm(job, cancel=True)
        if job.state is JobState.READY:
            return
        target = view.target(job.subject, job.worker)
        layout = None if target is None else lay_out(target, view)
        if layout is None or layout.stage_ms / self._params.link_share > layout.target.queue_ms:
            self._board.stop_fetching(job, now_ms)

    def _decide(self, watch: Watch, view: View, now_ms: float) -> None:
        """The fetch starts with the dispatch: worth it where the turn queues for longer than it takes."""
        if Trigger.DECISION not in self._params.triggers or self._params.mode is Mode.OFF:
            return
        target = view.target(watch.thread, watch.worker)
        if target is None or target.queue_ms <= 0:
            return
        layout = lay_out(target, view)
        if not layout.copies or layout.stage_ms / self._params.link_share > target.queue_ms:
            return
        layout = msgspec.structs.replace(layout, warm_tokens=0)
        deadline = now_ms + target.queue_ms
        until = deadline + self._params.hold_ms
        self._open(watch.thread, Trigger.DECISION, layout, Odds(1.0, 0.0), view, now_ms, deadline, until, sent=True)

    def _served(self, event: ev.Served, now_ms: float) -> None:
        job = self._board.of_subject(event.thread)
        if job is None or not job.sent:
            return
        self._board.stop_fetching(job, now_ms)
        if not job.ended:
            self._board.end(job, JobState.CONSUMED, useful_bytes=_useful_bytes(job, event.restored_tokens))

    # idle threads

    def _await(self, watch: Watch, now_ms: float, *, least_ms: float = 0.0) -> None:
        """Set the thread's timer to the next instant at which looking at it may be of use, or at which it counts as lost."""
        first = None
        if watch.idle_since_ms is not None and not watch.spent and self._wanted(watch.trigger):
            elapsed = max(self._params.first_check_ms, least_ms, now_ms - watch.idle_since_ms)
            first = self._survival(watch).first_instant(elapsed, self._params.hold_ms, self._params.min_probability)
        if watch.idle_since_ms is None:
            self._timers.cancel(watch.thread)
        else:
            wait_ms = self._params.lost_after_ms if first is None else min(first, self._params.lost_after_ms)
            self._timers.set(watch.thread, watch.idle_since_ms + wait_ms)

    def _thread_is_due(self, thread: str, view: View, now_ms: float) -> None:
        watch = self._watches.get(thread)
        if watch is None or watch.idle_since_ms is None:
            return
        if now_ms - watch.idle_since_ms >= self._params.lost_after_ms:
            self._gone(ev.Gone(thread, ev.GoneReason.SESSION_ENDED))
            return
        if watch.seen_changes is not None and view.changes(watch.worker) == watch.seen_changes:
            self._await(watch, now_ms, least_ms=_GROWTH * (now_ms - watch.idle_since_ms))
        else:
            self._consider(watch, view, now_ms)

    def _consider(self, watch: Watch, view: View, now_ms: float) -> None:
        """Weigh one idle thread's return."""
        if watch.idle_since_ms is None or not self._wanted(watch.trigger) or self._board.of_subject(watch.thread) is not None:
            return
        changes = view.changes(watch.worker)
        target = view.target(watch.thread, None)
        layout = None if target is None else lay_out(target, view)
        elapsed = now_ms - watch.idle_since_ms
        if layout is not None and (layout.copies or layout.warm_tokens):
            survival, hold = self._survival(watch), self._params.hold_ms
            stage_ms = layout.stage_ms / self._params.link_share
            whole = survival.within(elapsed, stage_ms + hold)
            late = survival.within(elapsed, stage_ms)
            if whole >= self._params.min_probability:
                deadline = now_ms + min(survival.quantile(elapsed, _DEADLINE_SHARE), hold)
                odds = Odds(whole - late, late)
                until = now_ms + stage_ms + hold
                if self._open(watch.thread, watch.trigger, layout, odds, view, now_ms, deadline, until):
                    return
        watch.seen_changes = changes
        self._await(watch, now_ms, least_ms=_GROWTH * max(elapsed, self._params.first_check_ms))

    def _survival(self, watch: Watch) -> Survival:
        return self.model.survival(watch.thread, watch.tool, watch.client)

    def _wanted(self, trigger: Trigger) -> bool:
        return self._params.mode is not Mode.OFF and trigger in self._params.triggers

    # the fleet changes

    def _drained(self, worker: WorkerKey, view: View, now_ms: float) -> None:
        """What was on its way there is planned anew."""
        meant = [job for job in self._board.active.values() if job.worker == worker and not job.sent]
        for job in meant:
            self._cancel(job)
        subjects = {job.subject for job in meant}
        watches = [watch for watch in self._watches if watch.worker == worker or watch.thread in subjects]
        self._move_hot(Trigger.DRAIN, watches, None, view, now_ms)

    def _scaled_out(self, worker: WorkerKey, view: View, now_ms: float) -> None:
        self._move_hot(
            Trigger.SCALE_OUT, [watch for watch in self._watches if watch.idle_since_ms is not None], worker, view, now_ms
        )

    def _move_hot(self, trigger: Trigger, watches: Iterable[Watch], to: WorkerKey | None, view: View, now_ms: float) -> None:
        """The likeliest to return first, as many as may; `to`: only those that would now be sent there."""
        if not self._wanted(trigger):
            return
        window = self._params.drain_window_ms
        chances = [(self._chance(watch, window, now_ms), watch) for watch in watches]
        chances.sort(key=lambda pair: -pair[0])
        for chance, watch in chances[: self._params.drain_threads]:
            if chance < self._params.min_probability:
                return
            if self._board.of_subject(watch.thread) is not None:
                continue
            target = view.target(watch.thread, None)
            if target is None or (to is not None and target.worker != to):
                continue
            layout = lay_out(target, view)
            if layout.copies:
                until = now_ms + window
                self._open(watch.thread, trigger, layout, Odds(chance, 0.0), view, now_ms, until, until)

    def _chance(self, watch: Watch, window_ms: float, now_ms: float) -> float:
        """A running turn's thread is taken for one that has just begun to idle."""
        elapsed = 0.0 if watch.idle_since_ms is None else now_ms - watch.idle_since_ms
        return self._survival(watch).within(elapsed, window_ms)

    # jobs

    def _open(
        self,
        subject: str,
        trigger: Trigger,
        layout: Layout,
        odds: Odds,
        view: View,
        now_ms: float,
        deadline_ms: float,
        until_ms: float,
        *,
        sent: bool = False,
    ) -> bool:
        """Begin a job if it is worth it and there is room; in a dry run only count it."""
        worth = weigh(layout, odds, view)
        if not worthwhile(layout, worth, self._params):
            return False
        if self._params.mode is Mode.DRY_RUN:
            self._board.tallies[trigger].dry_jobs += 1
            self._board.tallies[trigger].dry_bytes += layout.stage_bytes
            return False
        if len(self._board.active) >= self._params.max_jobs or not self._has_room(layout):
            return False
        job = _job(self.new_job(), subject, trigger, layout, deadline_ms, until_ms)
        job.sent = sent
        job.saved_ms = layout.saved_by_stage_ms + (layout.saved_by_warm_ms if layout.warm_tokens else 0.0)
        job.cost_ms = worth.cost_ms
        job.warm_at_ms = self._warm_at(subject, layout, now_ms)
        self._board.open(job, layout.copies, layout.ready_tokens, now_ms)
        self._follow(job)
        return True

    def _has_room(self, layout: Layout) -> bool:
        """For a page at least, and no page is larger than what may be in flight."""
        page_bytes = layout.target.page_tokens * layout.target.kv_bytes_per_token
        room = min(self._board.budgets.room(layout.target.node), self._params.chunk_bytes)
        return not layout.copies or page_bytes <= room

    def _warm_at(self, subject: str, layout: Layout, now_ms: float) -> float | None:
        """When the return is near enough for L1: it keeps what was warmed for a short time alone."""
        watch = self._watches.get(subject)
        if not layout.warm_tokens or watch is None or watch.idle_since_ms is None:
            return None
        params = self._params
        elapsed = now_ms - watch.idle_since_ms
        first = self._survival(watch).first_instant(elapsed, params.warm_hold_ms, params.warm_min_probability)
        return None if first is None else watch.idle_since_ms + first

    def _asked(self, event: ev.Asked, view: View, now_ms: float) -> None:
        """An explicit call replaces what runs for the same subject."""
        self._cancel(self._board.of_subject(event.subject))
        target = view.target(event.subject, event.worker)
        refusal = None
        if self._params.mode is not Mode.ON or Trigger.EXPLICIT not in self._params.triggers:
            refusal = FailReason.DISABLED
        elif target is None:
            refusal = FailReason.NO_WORKER
        elif len(self._board.active) >= self._params.max_jobs:
            refusal = FailReason.NO_ROOM
        if refusal is not None or target is None:
            self._refuse(event, refusal or FailReason.NO_WORKER)
            return
        self._open_asked(event, lay_out(target, view), view, now_ms)

    def _open_asked(self, event: ev.Asked, layout: Layout, view: View, now_ms: float) -> None:
        if not layout.ready_tokens:
            self._refuse(event, FailReason.NO_COPY)
        elif not self._has_room(layout):
            self._refuse(event, FailReason.NO_ROOM)
        else:
            job = _job(event.job, event.subject, Trigger.EXPLICIT, layout, event.deadline_ms, event.deadline_ms)
            job.priority, job.max_bytes = event.priority, event.max_bytes
            job.saved_ms = layout.saved_by_stage_ms + layout.saved_by_warm_ms
            job.cost_ms = weigh(layout, Odds(1.0, 0.0), view).cost_ms
            job.warm_at_ms = now_ms if layout.warm_tokens else None
            self._board.open(job, layout.copies, layout.ready_tokens, now_ms)
            self._follow(job)

    def _refuse(self, event: ev.Asked, reason: FailReason) -> None:
        job = Job(
            event.job,
            event.subject,
            Trigger.EXPLICIT,
            event.worker or WorkerKey(""),
            "",
            event.deadline_ms,
            event.deadline_ms,
        )
        job.advance(JobState.FAILED, reason)
        self._board.tallies[Trigger.EXPLICIT].ended(job, 0)
        self._board.remember(job)

    def _cancel(self, job: Job | None) -> None:
        if job is not None:
            self._board.end(job, JobState.CANCELLED)

    def _move_ended(self, event: ev.MoveEnded, now_ms: float) -> None:
        job = self._board.of_move(event.move)
        if job is not None and job.warm_move == event.move:
            self._warming.done(job, event.moved_bytes)
        else:
            self._board.staged(event.move, event.moved_bytes, now_ms)
        if job is not None and not job.ended:
            self._follow(job)

    def _move_failed(self, event: ev.MoveFailed, now_ms: float) -> None:
        job = self._board.of_move(event.move)
        if job is not None and job.warm_move == event.move:
            self._warming.failed(job)
        elif event.reason is FailReason.NODE_LOST and job is not None and event.move in job.moving:
            self._board.node_lost(job.moving[event.move].path.source, now_ms)
        else:
            self._board.stage_failed(event.move, event.moved_bytes, event.reason, now_ms)
        if job is not None and not job.ended:
            self._follow(job)

    def _follow(self, job: Job) -> None:
        """Set the job's timer: when it expires, or a warm request may be sent."""
        if job.ended:
            return
        warm_at = self._warming.due_ms(job)
        self._timers.set(job.id, job.expires_ms if warm_at is None else min(warm_at, job.expires_ms))

    def _job_is_due(self, job_id: int, now_ms: float) -> None:
        job = self._board.active.get(job_id)
        if job is None:
            return
        if job.expires_ms <= now_ms:
            self._board.end(job, JobState.EXPIRED)
        elif not self._warming.want(job):
            self._timers.set(job_id, job.expires_ms)

    def _pump(self, view: View, now_ms: float) -> None:
        self._warming.pump(view, now_ms)
        for job in self._warming.take_changed():
            self._follow(job)
        again = self._board.pump(view, now_ms)
        if again is None:
            self._timers.cancel(_PUMP)
        else:
            self._timers.set(_PUMP, again)

    def _outcome(self, now_ms: float) -> list[Move]:
        """What is to be done; jobs that have ended leave their threads to be awaited, or not, as they ended."""
        ended, self._board.just_ended = self._board.just_ended, []
        for job in ended:
            self._timers.cancel(job.id)
            watch = self._watches.get(job.subject)
            if watch is not None and watch.idle_since_ms is not None:
                watch.spent = job.state in (JobState.EXPIRED, JobState.CANCELLED)
                self._await(watch, now_ms, least_ms=_GROWTH * (now_ms - watch.idle_since_ms))
        return self._board.take_moves()

    def _touch(self, thread: str, worker: WorkerKey) -> Watch:
        watch, forgotten = self._watches.touch(thread, worker)
        for name in forgotten:
            self._timers.cancel(name)
        return watch


def _job(job_id: int, subject: str, trigger: Trigger, layout: Layout, deadline_ms: float, until_ms: float) -> Job:
    target: Target = layout.target
    job = Job(job_id, subject, trigger, target.worker, target.node, deadline_ms, until_ms)
    job.page_tokens, job.bytes_per_token = target.page_tokens, target.kv_bytes_per_token
    job.warm_tokens = layout.warm_tokens
    job.staged_from = layout.copies[0].start if layout.copies else layout.ready_tokens
    return job


def _useful_bytes(job: Job, restored_tokens: int | None) -> int:
    if restored_tokens is None:
        return job.moved_bytes
    return max(0, int((restored_tokens - job.staged_from) * job.bytes_per_token))
