"""How often turns come to each worker, and when one last had to wait for it: what a warm request would get in the way of."""

from __future__ import annotations

from math import inf

from costmodel.values import WorkerKey

_WINDOW_MS = 10_000.0


class Arrivals:
    """Counts over the last whole window, or over the running one where that has seen more. Bounded by the workers."""

    def __init__(self) -> None:
        self._counts: dict[WorkerKey, tuple[float, int, int]] = {}  # the window's begin, turns in it, turns in the one before
        self._held_ms: dict[WorkerKey, float] = {}

    def came(self, worker: WorkerKey, now_ms: float) -> None:
        begin, now, before = self._current(worker, now_ms)
        self._counts[worker] = (begin, now + 1, before)

    def held(self, worker: WorkerKey, now_ms: float) -> None:
        self._held_ms[worker] = now_ms

    def since_held_ms(self, worker: WorkerKey, now_ms: float) -> float:
        return now_ms - self._held_ms.get(worker, -inf)

    def turns_per_ms(self, worker: WorkerKey, now_ms: float) -> float:
        _, now, before = self._current(worker, now_ms)
        return max(now, before) / _WINDOW_MS

    def _current(self, worker: WorkerKey, now_ms: float) -> tuple[float, int, int]:
        begin, now, before = self._counts.get(worker, (now_ms, 0, 0))
        windows = int((now_ms - begin) // _WINDOW_MS)
        if windows == 0:
            return begin, now, before
        return begin + windows * _WINDOW_MS, 0, now if windows == 1 else 0
