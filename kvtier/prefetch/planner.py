"""The planner: hears events, weighs, and answers with moves. The package's page says what each of them means.

Keeps state, never a clock. Event order of one thread is taken as it comes; what makes no sense in it is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.arrivals import Arrivals
from kvtier.prefetch.benefit import Odds
from kvtier.prefetch.board import Board
from kvtier.prefetch.destination import DestinationModel, Forecast
from kvtier.prefetch.events import Event, FailReason, Trigger
from kvtier.prefetch.hot_threads import HotThreads
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import Layout, lay_out
from kvtier.prefetch.lines import Lines
from kvtier.prefetch.moves import Move
from kvtier.prefetch.opening import Opening, Plan, WarmChance
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.prefetch.recall import Recall
from kvtier.prefetch.reentry import ReentryModel
from kvtier.prefetch.survival import Survival
from kvtier.prefetch.tally import Tally
from kvtier.prefetch.timers import Timers
from kvtier.prefetch.view import View
from kvtier.prefetch.warm_trust import WarmTrust
from kvtier.prefetch.warming import Warming
from kvtier.prefetch.watches import RESUMED_TOOL, Watch, Watches

_PUMP = 0  # the timer key of waiting chunks; jobs go by their ids, threads by their names
_HOT = -1  # of threads that are to be weighed because the fleet has changed
_HOT_PAUSE_MS = 1.0  # between a few of them and the next
_GROWTH = 2.0  # a thread that was looked at in vain is looked at again after so many times its gap
_DEADLINE_SHARE = 0.25  # a job should be ready before more than this share of the threads like it are back


class Planner:
    """`plan` for every event, and with a `Tick` at `next_ms` at the latest."""

    def __init__(self, params: PrefetchParams | None = None, model: ReentryModel | None = None) -> None:
        self._params = params or PrefetchParams()
        self.model = model or ReentryModel(self._params.max_threads)
        self.destinations = DestinationModel()
        self._arrivals = Arrivals()
        self._board = Board(self._params)
        self._opening = Opening(self._board, self._arrivals)
        self._warming = Warming(self._board, self._arrivals)
        self._warm_trust: defaultdict[str, WarmTrust] = defaultdict(WarmTrust)  # by pool
        self._watches = Watches(self._params.max_threads)
        self._lines = Lines(self._params.max_threads)
        self._recall = Recall(self._board, self._opening, self._lines)
        self._awaiting: dict[str, WorkerKey] = {}  # threads whose turns wait in the gateway until their pages have come
        self._hot = HotThreads(self._board, self._opening, self.model, self.destinations)
        self._timers: Timers[str | int] = Timers()

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

    def fetches(self, thread: str, worker: WorkerKey, now_ms: float) -> bool:
        """Whether the turn of this thread, which is held, should go on waiting: its pages are on their way to this worker's
        node. When they have come, `take_released` says so; that the time is up says nobody."""
        job = self._board.of_subject(thread)
        waits = job is not None and job.worker == worker and job.fetching and now_ms < job.wait_until_ms
        if waits:
            self._awaiting[thread] = worker
        return waits

    def take_released(self, now_ms: float) -> list[WorkerKey]:
        """Where turns that waited for their pages may go now."""
        free = [thread for thread, worker in self._awaiting.items() if not self.fetches(thread, worker, now_ms)]
        return [self._awaiting.pop(thread) for thread in free]

    def job(self, job_id: int) -> Job | None:
        return self._board.job(job_id)

    def new_job(self) -> int:
        """A fresh id, for `Asked`."""
        return self._opening.new_job()

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
        self._follow_changed()
        for key in self._timers.due(now_ms):
            if isinstance(key, str):
                self._thread_is_due(key, view, now_ms)
            elif key == _HOT:
                self._hot_are_due(view, now_ms)
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
            case ev.Held():
                if event.full:
                    self._arrivals.held(event.worker, now_ms)
                self._comes(event, view, now_ms)
            case ev.Sent():
                self._comes(event, view, now_ms)
                self._lines.join(event.thread, event.worker, now_ms)
            case ev.Prefilled():
                self._prefilled(event, view, now_ms)
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
            case ev.Claimed():
                board.hand_on(event.subject, event.thread)
            case ev.CancelJob():
                self._cancel(board.active.get(event.job))
            case ev.Gone():
                self._gone(event)
            case ev.Resumed():
                self._resumed(event, view, now_ms)
            case ev.Drained():
                self._look_at_hot(now_ms)
                self._hot.drained(event.worker, self._watches, now_ms)
            case ev.ScaledOut():
                self._look_at_hot(now_ms)
                self._hot.scaled_out(event.worker)
            case ev.NodeLost():
                board.node_lost(event.node, now_ms)
            case ev.EngineRestarted():
                board.engine_restarted(event.worker, now_ms)
                self._lines.clear(event.worker)
            case ev.DemandWaits():
                board.yield_link(event.path, now_ms)

    # the life of a thread

    def _ended(self, event: ev.Ended, now_ms: float) -> None:
        self._lines.leave(event.thread)
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
        self._lines.leave(event.thread)
        watch = self._watches.drop(event.thread)
        if watch is not None and event.reason is not ev.GoneReason.COMPACTED:
            self.model.lost(watch.thread, watch.tool, watch.client)
        self.model.forget(event.thread)

    def _comes(self, event: ev.Held | ev.Sent, view: View, now_ms: float) -> None:
        """A turn has been placed; one that was held comes twice, the second time to stay."""
        watch = self._touch(event.thread, event.worker)
        watch.client = event.client or watch.client
        if isinstance(event, ev.Sent):
            self._arrivals.came(event.worker, now_ms)
        if watch.idle_since_ms is not None:
            self.model.returned(watch.thread, watch.tool, watch.client, now_ms - watch.idle_since_ms)
            watch.idle_since_ms = None
        self._timers.cancel(event.thread)
        self._settle(watch, event, view, now_ms)
        job = self._board.of_subject(event.thread)
        waits = isinstance(event, ev.Held)
        if job is None:
            self._decide(watch, view, now_ms, waits=waits)
        elif job.worker == event.worker or (job.planned_bytes and self._node_of(event, view) == job.node):
            self._give_to(job, event.worker, now_ms)
            self._turn_comes(job, view, now_ms, waits=waits)
        else:  # the plan is revised: it went elsewhere
            self._cancel(job)
            self._decide(watch, view, now_ms, waits=waits)

    def _settle(self, watch: Watch, event: ev.Held | ev.Sent, view: View, now_ms: float) -> None:
        """Learn whether the turn went where it was expected; of a thread that stayed away for long nothing was said."""
        forecast, watch.forecast = watch.forecast, None
        if forecast is None or now_ms - watch.forecast_ms > self._params.hold_ms:
            return
        right = forecast.worker == event.worker or self._node_of(event, view) == forecast.node
        self.destinations.settled(forecast, right=right)

    def _node_of(self, event: ev.Held | ev.Sent, view: View) -> str | None:
        target = view.target(event.thread, event.worker)
        return None if target is None else target.node

    def _give_to(self, job: Job, worker: WorkerKey, now_ms: float) -> None:
        """What was staged is for any worker of the node, what was warmed for one alone."""
        if job.worker != worker:
            self._settle_warmed(job, now_ms, used=False)
            self._board.lose_warmed(job)
            job.worker = worker

    def _turn_comes(self, job: Job, view: View, now_ms: float, *, waits: bool) -> None:
        """What is missing may still come while the turn queues; the rest is late. A warm request would only be in its way."""
        if job.fetching and not waits:
            self._board.late(job)
        job.sent, job.warm_at_ms = True, None
        job.expires_ms = max(job.expires_ms, now_ms + self._params.hold_ms)  # it may queue there
        self._follow(job)
        self._board.drop_warm(job, cancel=True)
        if job.state is JobState.READY:
            return
        target = view.target(job.subject, job.worker)
        layout = None if target is None else lay_out(target, view)
        spare_ms = 0.0 if layout is None else _spare_ms(layout, waits=waits)
        job.wait_until_ms = now_ms + spare_ms
        if layout is None or layout.stage_ms / self._params.link_share > spare_ms:
            self._board.stop_fetching(job, now_ms)

    def _decide(self, watch: Watch, view: View, now_ms: float, *, waits: bool) -> None:
        """The fetch starts with the dispatch: worth it where the turn queues for longer than it takes. Where it `waits` in the
        gateway it starts ahead of that: worth it where it takes less than it saves."""
        if Trigger.DECISION not in self._params.triggers or self._params.mode is Mode.OFF:
            return
        target = view.target(watch.thread, watch.worker)
        if target is None or (target.queue_ms <= 0 and not waits):
            return
        layout = lay_out(target, view)
        spare_ms = _spare_ms(layout, waits=waits)
        if not layout.copies or layout.stage_ms / self._params.link_share > spare_ms:
            return
        deadline = now_ms + target.queue_ms
        until = deadline + self._params.hold_ms
        plan = Plan(watch.thread, Trigger.DECISION, layout, Odds(1.0, 0.0), deadline, until, sent=True)
        job = self._begin(plan, view, now_ms)
        if job is not None:
            job.wait_until_ms = now_ms + spare_ms

    def _prefilled(self, event: ev.Prefilled, view: View, now_ms: float) -> None:
        """The next in line are nearer to their turns; a request that made the engine read for this one is in the way."""
        worker = self._lines.leave(event.thread)
        job = self._board.of_subject(event.thread)
        if job is not None and job.sent:
            self._board.drop_warm(job, cancel=True)
        if worker is not None:
            self._follow_all(self._recall.advance(worker, view, now_ms))

    def _served(self, event: ev.Served, now_ms: float) -> None:
        job = self._board.of_subject(event.thread)
        if job is None or not job.sent:
            return
        restored, least = event.restored_tokens, job.recalled_from
        job.recall_useful_tokens = (
            job.recalled_tokens if restored is None else max(0, min(job.recalled_tokens, restored - least))
        )
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
        if now_ms >= watch.idle_since_ms + self._params.lost_after_ms:  # as the timer was set: a difference may round below it
            self._gone(ev.Gone(thread, ev.GoneReason.SESSION_ENDED))
            return
        if watch.seen_changes is not None and view.changes(watch.worker) == watch.seen_changes:
            self._await(watch, now_ms, least_ms=_GROWTH * (now_ms - watch.idle_since_ms))
        else:
            self._consider(watch, view, now_ms)

    def _look_at_hot(self, now_ms: float) -> None:
        """Begin to; where some wait already their timer is set, and however many workers change, a few are looked at a time."""
        if not self._hot.waiting:
            self._timers.set(_HOT, now_ms)

    def _hot_are_due(self, view: View, now_ms: float) -> None:
        self._timers.set(_HOT, now_ms + _HOT_PAUSE_MS)  # even if the view raises
        self._follow_all(self._hot.advance(self._watches, view, now_ms))
        if not self._hot.waiting:
            self._timers.cancel(_HOT)

    def _consider(self, watch: Watch, view: View, now_ms: float) -> None:
        """Weigh one idle thread's return."""
        if watch.idle_since_ms is None or not self._wanted(watch.trigger) or self._board.of_subject(watch.thread) is not None:
            return
        changes = view.changes(watch.worker)
        target = view.target(watch.thread, None)
        layout = None if target is None else lay_out(target, view)
        elapsed = now_ms - watch.idle_since_ms
        near = False
        if layout is not None and (layout.copies or layout.warm_tokens):
            near = layout.target.margin_ms < inf
            if self._prepare(watch, layout, elapsed, view, now_ms):
                return
        watch.seen_changes = None if near else changes  # loads change without a word, and may part the candidates
        self._await(watch, now_ms, least_ms=_GROWTH * max(elapsed, self._params.first_check_ms))

    def _prepare(self, watch: Watch, layout: Layout, elapsed: float, view: View, now_ms: float) -> bool:
        """Begin a job for an idle thread, if it pays at the odds of its return and of its return to here."""
        target, params, survival = layout.target, self._params, self._survival(watch)
        stage_ms = layout.stage_ms / params.link_share
        whole, late = survival.within(elapsed, stage_ms + params.hold_ms), survival.within(elapsed, stage_ms)
        margin, moves = target.margin_ms + layout.saved_by_stage_ms, target.worker != watch.worker
        odds = Odds(whole - late, late, self.destinations.odds(target.pool, margin, moves=moves))
        here = self.destinations.odds(target.pool, target.margin_ms, moves=moves)
        plan = Plan(
            watch.thread,
            watch.trigger,
            layout,
            odds if odds.used >= params.min_probability else None,
            now_ms + min(survival.quantile(elapsed, _DEADLINE_SHARE), params.hold_ms),
            now_ms + stage_ms + params.hold_ms,
            self._warm_chance(survival, here, elapsed, target.pool, now_ms) if layout.warm_tokens else None,
        )
        job = self._begin(plan, view, now_ms)
        told = margin if job is not None and job.planned_bytes else target.margin_ms
        watch.forecast, watch.forecast_ms = Forecast(target.worker, target.node, target.pool, moves, told), now_ms
        return job is not None

    def _warm_chance(self, survival: Survival, here: float, elapsed: float, pool: str, now_ms: float) -> WarmChance | None:
        """When the return is near enough for L1: it keeps what was warmed for a short time alone."""
        params, trusted = self._params, here * self._warm_trust[pool].factor(now_ms)
        least = params.warm_min_probability / trusted if trusted else inf
        first = survival.first_instant(elapsed, params.warm_hold_ms, least)
        if first is None:
            return None
        within = survival.within(first, params.warm_hold_ms)
        return WarmChance(now_ms + first - elapsed, trusted * within, here * within)

    def _survival(self, watch: Watch) -> Survival:
        return self.model.survival(watch.thread, watch.tool, watch.client)

    def _wanted(self, trigger: Trigger) -> bool:
        return self._params.mode is not Mode.OFF and trigger in self._params.triggers

    # jobs

    def _begin(self, plan: Plan, view: View, now_ms: float) -> Job | None:
        job = self._opening.begin(plan, view, now_ms)
        if job is not None:
            self._follow(job)
        return job

    def _asked(self, event: ev.Asked, view: View, now_ms: float) -> None:
        """An explicit call replaces what runs for the same subject."""
        self._cancel(self._board.of_subject(event.subject))
        if self._params.mode is not Mode.ON or Trigger.EXPLICIT not in self._params.triggers:
            self._opening.refuse(event, FailReason.DISABLED)
        elif (target := view.target(event.subject, event.worker)) is None:
            self._opening.refuse(event, FailReason.NO_WORKER)
        elif (job := self._opening.asked(event, lay_out(target, view), view, now_ms)) is not None:
            self._follow(job)

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
            self._board.stage_failed(event, now_ms)
        if job is not None and not job.ended:
            self._follow(job)

    def _settle_warmed(self, job: Job, now_ms: float, *, used: bool) -> None:
        if job.warmed_bytes and job.warm_odds:
            self._warm_trust[job.pool].settled(job.warm_odds, used=used, now_ms=now_ms)

    def _follow_changed(self) -> None:
        changed, self._board.just_changed = self._board.just_changed, []
        self._follow_all(changed)

    def _follow_all(self, jobs: list[Job]) -> None:
        for job in jobs:
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
        else:
            self._warming.want(job)
            self._timers.set(job_id, job.expires_ms)  # even if nobody follows it when the view has raised

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
            self._settle_warmed(job, now_ms, used=job.state is JobState.CONSUMED)
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


def _spare_ms(layout: Layout, *, waits: bool) -> float:
    """How long a stage may take for a turn that has come: while it queues it costs nothing, beyond that what it saves."""
    return layout.target.queue_ms + (layout.saved_by_stage_ms if waits else 0.0)


def _useful_bytes(job: Job, restored_tokens: int | None) -> int:
    if restored_tokens is None:
        return job.moved_bytes
    return max(0, int((restored_tokens - job.staged_from) * job.bytes_per_token))
