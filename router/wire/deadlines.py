"""One coarse timer wheel for all waits of the byte path: most deadlines cost one set operation and no timer of the loop.

A wait that ends within a tick, as most do, never reaches the wheel's buckets. Moving a deadline later only writes `due_s`; the
wheel looks again when the old one comes round. It ticks only while something is armed. Deadlines fire up to two ticks late,
never early.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_FRESH = -1


class Due(Protocol):
    """Something with a deadline. The wheel owns `due_tick`; the holder may move `due_s` later at any time while armed."""

    due_s: float  # on the loop's clock
    due_tick: int  # 0 = not armed, -1 = armed since the last tick

    def on_deadline(self) -> None: ...


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float = 0.05) -> None:
        self._loop = loop
        self._now = loop.time
        self._tick_s = tick_s
        self._fresh: set[Due] = set()
        self._buckets: dict[int, set[Due]] = {}
        self._ticking: asyncio.TimerHandle | None = None
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
        if self._ticking is None:
            self._last_tick = int(self._now() / self._tick_s)
            self._ticking = self._loop.call_later(self._tick_s, self._tick)

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

    def _tick(self) -> None:
        now_s = self._now()
        now_tick = int(now_s / self._tick_s)
        fresh, self._fresh = self._fresh, set()
        for due in fresh:
            self._insert(due)
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
