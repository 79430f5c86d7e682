"""Admission to one pool: real permits, held from placement to the end of the stream, and a bounded queue before them.

The queue is ordered by the arrival of the agentic session, not of the call, so that a long-running session is not pushed
back by newcomers at every turn (Sutradhara). A full queue answers 429 and a missed deadline 503, both with Retry-After.
"""

from __future__ import annotations

import asyncio
import heapq

from router.errors import QueueFull, QueueTimeout


class Admission:
    """`limit` turns at a time, `queue_limit` more may wait up to `timeout_s`."""

    def __init__(self, *, limit: int, queue_limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._queue_limit = queue_limit
        self._timeout_s = timeout_s
        self._running = 0
        self._arrivals = 0
        self._queue: list[tuple[float, int, asyncio.Future[None]]] = []
        self._waiting = 0

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return self._waiting

    def try_acquire(self) -> bool:
        """Take a permit at once if one is free and nobody waits. The caller must `release` it."""
        if self._waiting or self._running >= self._limit:
            return False
        self._running += 1
        return True

    async def acquire(self, session_arrived_ms: float) -> None:
        """Wait for a permit behind the sessions that arrived earlier. Raises QueueFull or QueueTimeout."""
        if self.try_acquire():
            return
        if self._waiting >= self._queue_limit:
            raise QueueFull(f"{self._limit} turns are running and {self._waiting} wait: try again shortly")
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._queue, (session_arrived_ms, self._arrivals, granted))
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await granted
        except TimeoutError:
            if granted.done() and not granted.cancelled():
                return  # granted in the same step as the deadline
            raise QueueTimeout(f"no place within {self._timeout_s:g} s: {self._limit} turns are running") from None
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release()  # granted in the same step as the caller left
            raise
        finally:
            self._waiting -= 1
            granted.cancel()
            self._forget_leavers()

    def release(self) -> None:
        """Hand the permit to the first session in line, or give it back."""
        while self._queue:
            _, _, granted = heapq.heappop(self._queue)
            if not granted.done():
                granted.set_result(None)
                return
        self._running -= 1

    def _forget_leavers(self) -> None:
        """Entries of callers that gave up are dropped in bulk, so that the heap stays within twice the queue."""
        if len(self._queue) > 2 * self._waiting + 16:
            self._queue = [entry for entry in self._queue if not entry[2].done()]
            heapq.heapify(self._queue)
