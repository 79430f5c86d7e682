"""Prefetch where workers are lost and join: what the planner is told of that, as `router.prefetch.prefetcher` tells it."""

from __future__ import annotations

from bench.simulate.prefetching import Prefetching
from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev


class ChurnedPrefetching(Prefetching):
    """The view knows of each change before the planner does."""

    def lost(self, worker: WorkerKey) -> None:
        """With its node: what was on its way there ends, and what was to come from there is computed."""
        self._plan(ev.NodeLost(worker.worker_id))

    def joined(self, worker: WorkerKey) -> None:
        """Empty, so that threads which would now be placed there may bring their KV."""
        self._plan(ev.ScaledOut(worker))
