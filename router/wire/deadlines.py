"""One coarse timer wheel for all waits of the byte path, so that a deadline costs two set operations and no timer of the loop.

Buckets hold what is due in the same tick. Moving a deadline later only writes `due_s`; the wheel looks again when the old one
comes round. It ticks only while something is armed. Deadlines fire up to one tick late, never early.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Due(Protocol):
    """Something with a deadline. The wheel owns `due_tick`; the holder may move `due_s` later at any time while armed."""

    due_s: float  # on the loop's clock
    due_tick: int  # 0 = not armed

    def on_deadline(self) -> None: ...


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float = 0.05) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._buckets: dict[int, set[Due]] = {}
        self._armed = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._last_tick = 0

    def __len__(self) -> int:
        return self._armed

    def arm(self, due: Due, delay_s: float) -> None:
        """Call `due.on_deadline()` once after `delay_s`, unless it is disarmed or moved before. Arming again moves it."""
        self.disarm(due)
        now_s = self._loop.time()
        due.due_s = now_s + delay_s
        if self._ticking is None:
            self._last_tick = int(now_s / self._tick_s)
            self._ticking = self._loop.call_later(self._tick_s, self._tick)
        self._insert(due)

    def disarm(self, due: Due) -> None:
        tick = due.due_tick
        if tick:
            due.due_tick = 0
            self._armed -= 1
            bucket = self._buckets[tick]
            bucket.discard(due)
            if not bucket:
                del self._buckets[tick]

    def _insert(self, due: Due) -> None:
        tick = max(int(due.due_s / self._tick_s), self._last_tick) + 1
        due.due_tick = tick
        self._armed += 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = {due}
        else:
            bucket.add(due)

    def _tick(self) -> None:
        now_s = self._loop.time()
        now_tick = int(now_s / self._tick_s)
        # The next tick is arranged first: a holder that raises must not stop everyone's deadlines.
        self._ticking = self._loop.call_later(self._tick_s, self._tick) if self._buckets else None
        while self._last_tick < now_tick:
            self._last_tick += 1
            if self._last_tick in self._buckets:
                self._fire(self._last_tick, now_s)

    def _fire(self, tick: int, now_s: float) -> None:
        try:
            while bucket := self._buckets.get(tick):
                due = next(iter(bucket))
                self.disarm(due)
                if due.due_s > now_s:
                    self._insert(due)
                else:
                    due.on_deadline()
        finally:
            if tick in self._buckets:
                self._loop.call_soon(self._fire, tick, now_s)
