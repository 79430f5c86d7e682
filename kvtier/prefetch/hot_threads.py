"""The fleet changes: the threads likeliest to return leave a draining worker, or come to a new one, before their turns do.

They are weighed a few at a time, and once for all workers that came together: each asks the cost model while turns wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.benefit import Odds
from kvtier.prefetch.board import Board
from kvtier.prefetch.destination import DestinationModel
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import lay_out
from kvtier.prefetch.opening import Opening, Plan
from kvtier.prefetch.params import Mode
from kvtier.prefetch.reentry import ReentryModel
from kvtier.prefetch.view import View
from kvtier.prefetch.watches import Watch, Watches

_AT_ONCE = 16
_RANKED = 2  # times the threads that may move: those that were last heard of


class Hot(msgspec.Struct, frozen=True, gc=False):
    """`to`: it moves only if it would now be sent to one of these; None: wherever it would be sent."""

    trigger: Trigger
    thread: str
    idle_since_ms: float | None
    chance: float
    to: frozenset[WorkerKey] | None


class HotThreads:
    def __init__(self, board: Board, opening: Opening, model: ReentryModel, destinations: DestinationModel) -> None:
        self._board = board
        self._opening = opening
        self._model = model
        self._destinations = destinations
        self._next: OrderedDict[str, Hot] = OrderedDict()  # by thread
        self._new: set[WorkerKey] = set()  # that threads are still to be ranked for

    @property
    def waiting(self) -> bool:
        """Some are still to be weighed."""
        return bool(self._next or self._new)

    def drained(self, worker: WorkerKey, watches: Watches, now_ms: float) -> None:
        """What was on its way there is planned anew."""
        meant = [job for job in self._board.active.values() if job.worker == worker and not job.sent]
        for job in meant:
            self._board.end(job, JobState.CANCELLED)
        subjects = {job.subject for job in meant}
        found = (watch for watch in reversed(watches) if watch.worker == worker or watch.thread in subjects)
        self._rank(Trigger.DRAIN, found, None, now_ms)

    def scaled_out(self, worker: WorkerKey) -> None:
        self._new.add(worker)

    def advance(self, watches: Watches, view: View, now_ms: float) -> list[Job]:
        """Weigh the next few. The jobs that were begun."""
        self._rank_for_new(watches, now_ms)
        jobs = []
        for _ in range(min(_AT_ONCE, len(self._next))):
            hot = self._next.popitem(last=False)[1]
            watch = watches.get(hot.thread)
            if watch is not None and watch.idle_since_ms == hot.idle_since_ms and self._may_begin(hot):
                job = self._begin(hot, watch, view, now_ms)
                jobs += [job] if job is not None else []
        return jobs

    def _may_begin(self, hot: Hot) -> bool:
        return self._wanted(hot.trigger) and self._board.of_subject(hot.thread) is None

    def _wanted(self, trigger: Trigger) -> bool:
        params = self._board.params
        return params.mode is not Mode.OFF and trigger in params.triggers

    def _rank_for_new(self, watches: Watches, now_ms: float) -> None:
        if self._new:
            new, self._new = frozenset(self._new), set()
            idle = (watch for watch in reversed(watches) if watch.idle_since_ms is not None)
            self._rank(Trigger.SCALE_OUT, idle, new, now_ms)

    def _rank(self, trigger: Trigger, watches: Iterable[Watch], to: frozenset[WorkerKey] | None, now_ms: float) -> None:
        """The likeliest first, as many as may. `watches`: last heard of first."""
        if not self._wanted(trigger):
            return
        params = self._board.params
        lately = list(islice(watches, _RANKED * params.drain_threads))
        hot = [Hot(trigger, each.thread, each.idle_since_ms, self._chance(each, now_ms), to) for each in reversed(lately)]
        hot.sort(key=lambda each: -each.chance)
        for each in hot[: params.drain_threads]:
            if each.chance >= params.min_probability:
                self._join(each)

    def _join(self, hot: Hot) -> None:
        """A thread that waits to be weighed goes to whichever of its places is then the cheapest."""
        before = self._next.get(hot.thread)
        if before is not None and before.idle_since_ms == hot.idle_since_ms:
            if before.to is None:
                return
            if hot.to is not None:
                hot = msgspec.structs.replace(hot, to=before.to | hot.to)
        self._next[hot.thread] = hot

    def _begin(self, hot: Hot, watch: Watch, view: View, now_ms: float) -> Job | None:
        target = view.target(hot.thread, None)
        if target is None or (hot.to is not None and target.worker not in hot.to):
            return None
        layout = lay_out(target, view)
        margin = target.margin_ms + layout.saved_by_stage_ms
        odds = Odds(hot.chance, 0.0, self._destinations.odds(target.pool, margin, moves=target.worker != watch.worker))
        if not layout.copies or odds.used < self._board.params.min_probability:
            return None
        until = now_ms + self._board.params.drain_window_ms
        return self._opening.begin(Plan(hot.thread, hot.trigger, layout, odds, until, until), view, now_ms)

    def _chance(self, watch: Watch, now_ms: float) -> float:
        """That it returns while it matters. A running turn's thread is taken for one that has just begun to idle."""
        elapsed = 0.0 if watch.idle_since_ms is None else now_ms - watch.idle_since_ms
        survival = self._model.survival(watch.thread, watch.tool, watch.client)
        return survival.within(elapsed, self._board.params.drain_window_ms)
