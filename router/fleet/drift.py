"""Says in the log when a worker's predictions begin to drift, and when they no longer do: once a change, by term."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from costmodel.accuracy import Accuracy
from router.fleet.fleet import Fleet
from router.fleet.worker import Worker

_log = structlog.get_logger(__name__)
_LOOK_S = 10.0
TTFT = "ttft"


class Judged(NamedTuple):
    """How one term of one worker's turns was predicted; `term` is `ttft` or a `LegTerm`."""

    pool: str
    worker: str
    term: str
    accuracy: Accuracy


class DriftWatch:
    """`start` and `close` (awaited) are its life."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._drifting: set[tuple[str, str]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="drift")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def look(self) -> None:
        found = {(each.worker, each.term): each for each in judged(self._fleet)}
        for key, each in found.items():
            drifting, told = each.accuracy.drifting, key in self._drifting
            if drifting and not told:
                self._drifting.add(key)
                error, bias = each.accuracy.error, each.accuracy.bias
                _log.warning("predictions_drift", worker=each.worker, term=each.term, error_p50=error, bias_p50=bias)
            elif told and not drifting:
                self._drifting.discard(key)
                _log.info("predictions_settled", worker=each.worker, term=each.term, error_p50=each.accuracy.error)
        self._drifting &= found.keys()  # workers that were removed

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()


def judged(fleet: Fleet) -> Iterator[Judged]:
    """What was observed at least once."""
    for pool in fleet.pools.values():
        for worker in pool.workers.values():
            for term, accuracy in _terms(worker):
                if accuracy.turns:
                    yield Judged(pool.name, worker.worker_id, term, accuracy)


def _terms(worker: Worker) -> Iterator[tuple[str, Accuracy]]:
    yield TTFT, worker.rates.accuracy
    for leg, accuracy in worker.rates.legs.items():
        yield leg.value, accuracy
