"""The fleet changes: the threads likeliest to return leave a draining worker, or come to a new one, before their turns do."""

from __future__ import annotations

from collections.abc import Iterable

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


class HotThreads:
    """Both calls answer with the jobs that they began."""

    def __init__(self, board: Board, opening: Opening, model: ReentryModel, destinations: DestinationModel) -> None:
        self._board = board
        self._opening = opening
        self._model = model
        self._destinations = destinations

    def drained(self, worker: WorkerKey, watches: Watches, view: View, now_ms: float) -> list[Job]:
        """What was on its way there is planned anew."""
        meant = [job for job in self._board.active.values() if job.worker == worker and not job.sent]
        for job in meant:
            self._board.end(job, JobState.CANCELLED)
        subjects = {job.subject for job in meant}
        found = [watch for watch in watches if watch.worker == worker or watch.thread in subjects]
        return self._move(Trigger.DRAIN, found, None, view, now_ms)

    def scaled_out(self, worker: WorkerKey, watches: Watches, view: View, now_ms: float) -> list[Job]:
        idle = [watch for watch in watches if watch.idle_since_ms is not None]
        return self._move(Trigger.SCALE_OUT, idle, worker, view, now_ms)

    def _move(self, trigger: Trigger, watches: Iterable[Watch], to: WorkerKey | None, view: View, now_ms: float) -> list[Job]:
        """The likeliest first, as many as may; `to`: only those that would now be sent there."""
        params = self._board.params
        if params.mode is Mode.OFF or trigger not in params.triggers:
            return []
        chances = [(self._chance(watch, params.drain_window_ms, now_ms), watch) for watch in watches]
        chances.sort(key=lambda pair: -pair[0])
        jobs = []
        for chance, watch in chances[: params.drain_threads]:
            if chance < params.min_probability:
                break
            if self._board.of_subject(watch.thread) is None:
                job = self._begin(trigger, watch, to, chance, view, now_ms)
                jobs += [job] if job is not None else []
        return jobs

    def _begin(
        self, trigger: Trigger, watch: Watch, to: WorkerKey | None, chance: float, view: View, now_ms: float
    ) -> Job | None:
        target = view.target(watch.thread, None)
        if target is None or (to is not None and target.worker != to):
            return None
        layout = lay_out(target, view)
        margin = target.margin_ms + layout.saved_by_stage_ms
        here = self._destinations.odds(target.pool, margin, moves=target.worker != watch.worker)
        if not layout.copies or chance * here < self._board.params.min_probability:
            return None
        until = now_ms + self._board.params.drain_window_ms
        return self._opening.begin(Plan(watch.thread, trigger, layout, Odds(chance, 0.0, here), until, until), view, now_ms)

    def _chance(self, watch: Watch, window_ms: float, now_ms: float) -> float:
        """A running turn's thread is taken for one that has just begun to idle."""
        elapsed = 0.0 if watch.idle_since_ms is None else now_ms - watch.idle_since_ms
        return self._model.survival(watch.thread, watch.tool, watch.client).within(elapsed, window_ms)
