"""Turns that were sent to each worker and whose prefill is not known to be over, in the order in which they were sent."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from costmodel.values import WorkerKey


class InLine(msgspec.Struct):
    """Mutable. `recalled`: its pages were fetched again, once. `computed`: its prompt was seen to be in L1."""

    thread: str
    sent_ms: float
    recalled: bool = False
    computed: bool = False


class Lines:
    """A thread stands in one line at most. Bounded: what was sent longest ago goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[WorkerKey, OrderedDict[str, InLine]] = {}
        self._worker_of: OrderedDict[str, WorkerKey] = OrderedDict()

    def __len__(self) -> int:
        return len(self._worker_of)

    def join(self, thread: str, worker: WorkerKey, now_ms: float) -> None:
        """To the end of the worker's line, from wherever it stood."""
        self.leave(thread)
        self._worker_of[thread] = worker
        self._lines.setdefault(worker, OrderedDict())[thread] = InLine(thread, now_ms)
        while len(self._worker_of) > self._limit:
            self.leave(next(iter(self._worker_of)))

    def leave(self, thread: str) -> WorkerKey | None:
        """The worker that it stood at; None if it stood nowhere."""
        worker = self._worker_of.pop(thread, None)
        if worker is not None:
            line = self._lines[worker]
            del line[thread]
            if not line:
                del self._lines[worker]
        return worker

    def clear(self, worker: WorkerKey) -> None:
        for thread in list(self._lines.get(worker, ())):
            self.leave(thread)

    def first(self, worker: WorkerKey, count: int) -> list[InLine]:
        line = self._lines.get(worker)
        return [] if line is None else [turn for turn, _ in zip(line.values(), range(count), strict=False)]
