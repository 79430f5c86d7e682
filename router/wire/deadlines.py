"""One coarse timer wheel for all waits of the byte path: most deadlines cost one set operation and no timer of the loop.

A wait that ends before the wheel next looks, as most do, never reaches the wheel's buckets. Moving a deadline later only writes
`due_s`; the wheel looks again when the old one comes round. It looks once a second while something is new, else when the
first of its buckets is due, for to wake an idle process costs more than all that it does then. Deadlines fire up to two ticks
late, never early.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

_FRESH = -1
_LOOK_S = 1.0


class Due(Protocol):
    """Something with a deadline. The wheel owns `due_tick`; the holder may move `due_s` later at any time while armed."""

    due_s: float  # on the loop's clock
    due_tick: int  # 0 = not armed, -1 = armed since the wheel last looked

    def on_deadline(self) -> None: ...


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float = 0.05) -> None:
        self._loop = loop
        self._now = loop.time
        self._tick_s = tick_s
        self._fresh: set[Due] = set()
        self._buckets: dict[int, set[Due]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_s = inf
        self._last_tick = 0

    def __len__(self) -> int:
        return len(self._fresh) + sum(map(len, self._buckets.values()))

    def arm(self, due: Due, delay_s: float) -> None:
        """Call `due.on_deadline()` once after `delay_s`, unless it is disarmed or moved before. Arming again moves it."""
        if due.due_tick:
            self.disarm(due)
        due.due_s = self._now() + delay_s
        due.due_tick = _FRESH
        self._fresh.add(due)
        if due.due_s + 1.5 * self._tick_s < self._look_at_s:
            self._arrange()

    def disarm(self, due: Due) -> None:
        tick = due.due_tick
        if tick == _FRESH:
            due.due_tick = 0
            self._fresh.discard(due)
        elif tick:
            due.due_tick = 0
            bucket = self._buckets[tick]
            bucket.discard(due)
            if not bucket:
                del self._buckets[tick]

    def _insert(self, due: Due) -> None:
        due.due_tick = tick = max(int(due.due_s / self._tick_s), self._last_tick) + 1
        self._buckets.setdefault(tick, set()).add(due)

    def _look(self) -> None:
        now_s = self._now()
        now_tick = int(now_s / self._tick_s)
        fresh, self._fresh = self._fresh, set()
        for due in fresh:
            self._insert(due)
        self._last_tick = now_tick
        try:
            for tick in sorted(tick for tick in self._buckets if tick <= now_tick):
                self._fire(tick, now_s)
        finally:
            self._arrange()  # a holder that raises must not stop everyone's deadlines

    def _fire(self, tick: int, now_s: float) -> None:
        while bucket := self._buckets.get(tick):
            due = next(iter(bucket))
            self.disarm(due)
            if due.due_s > now_s:
                self._insert(due)
            else:
                due.on_deadline()

    def _arrange(self) -> None:
        """Look again when the first is due, and in a second at the latest while there are new ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._now()
        self._look_at_s = (min(self._buckets, default=inf) + 0.5) * self._tick_s  # within the tick, however loops round
        if self._fresh:
            first_s = min(due.due_s for due in self._fresh) + 1.5 * self._tick_s
            self._look_at_s = min(self._look_at_s, first_s, now_s + _LOOK_S)
        if self._look_at_s < inf:
            self._timer = self._loop.call_later(max(self._look_at_s - now_s, 0.0), self._look)
