"""Who is to blame for a 5xx: the worker that answered it, or the request.

A worker that fails a request which another then serves is at fault itself. A request that nobody serves is probably at fault,
and what it did must not count in full against the workers: a few such bodies would take all of them away from everybody else.
"""

from __future__ import annotations

from router.fleet.worker import Worker


class Suspects:
    """The workers that answered one request with a 5xx, until it is known. Each holds its breaker's trial, if it had that."""

    __slots__ = ("_workers",)

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def add(self, worker: Worker) -> None:
        if worker not in self._workers:
            self._workers.append(worker)

    def another_serves(self, now_ms: float) -> None:
        """A worker has begun to answer the request: it can be served."""
        for worker in self._take():
            worker.breaker.on_failure(now_ms, answered=True)

    def nobody_served(self, now_ms: float) -> bool:
        """The request is over. Whether several workers failed it."""
        workers = self._take()
        for worker in workers:
            worker.breaker.on_doubtful_failure(now_ms)
        return len(workers) > 1

    def _take(self) -> list[Worker]:
        workers, self._workers = self._workers, []
        return workers
