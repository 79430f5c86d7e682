"""The timer wheel against a virtual clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.deadlines import Deadlines

TICK_S = 0.05


class Timer:
    """What `call_later` answers with."""

    def __init__(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.cancelled = False
        self._callback = callback
        self._args = args

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        self._callback(*self._args)


class VirtualLoop:
    """Just enough of a loop: time and call_later."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Timer]] = []
        self.wakes = 0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(callback, args)
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), timer))
        return timer

    def advance(self, to_s: float) -> None:
        while self._queue and self._queue[0][0] <= to_s:
            due_s, _, timer = heapq.heappop(self._queue)
            if timer.cancelled:
                continue
            self.now_s = max(self.now_s, due_s)
            self.wakes += 1
            timer.run()
        self.now_s = to_s

    @property
    def idle(self) -> bool:
        return all(timer.cancelled for _, _, timer in self._queue)


class Wait:
    def __init__(self, loop: VirtualLoop, broken: bool = False) -> None:
        self.due_s = 0.0
        self.due_tick = 0
        self.fired_s: float | None = None
        self._loop = loop
        self._broken = broken

    def on_deadline(self) -> None:
        assert self.fired_s is None
        self.fired_s = self._loop.time()
        if self._broken:
            raise RuntimeError("broken holder")


def wheel(loop: VirtualLoop) -> Deadlines:
    return Deadlines(loop, TICK_S)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.booleans(), st.floats(0, 3)), max_size=20))
def test_fires_once_after_its_time_and_never_before(plan: list[tuple[float, float, bool, float]]) -> None:
    """Each wait is armed at some time for some delay; some are moved later while armed."""
    loop = VirtualLoop()
    deadlines = wheel(loop)
    waits = []
    for start_s, delay_s, moved, further_s in sorted(plan):
        loop.advance(1000.0 + start_s)
        wait = Wait(loop)
        deadlines.arm(wait, delay_s)
        if moved:
            wait.due_s += further_s
        waits.append((wait, wait.due_s))
    loop.advance(1020.0)
    for wait, due_s in waits:
        assert wait.fired_s is not None
        assert due_s <= wait.fired_s <= due_s + 2 * TICK_S + 1e-6
    assert len(deadlines) == 0
    assert loop.idle  # it ticks for nobody


def test_disarmed_never_fires_and_rearmed_counts_anew() -> None:
    loop = VirtualLoop()
    deadlines = wheel(loop)
    gone, again = Wait(loop), Wait(loop)
    deadlines.arm(gone, 1.0)
    deadlines.arm(again, 5.0)
    deadlines.disarm(gone)
    deadlines.disarm(gone)
    deadlines.arm(again, 1.0)
    loop.advance(1002.0)
    assert gone.fired_s is None
    assert again.fired_s == pytest.approx(1001.0, abs=2 * TICK_S)


def test_a_holder_that_raises_stops_nobody_else() -> None:
    loop = VirtualLoop()
    deadlines = wheel(loop)
    waits = [Wait(loop, broken=i % 2 == 0) for i in range(6)]
    for wait in waits:
        deadlines.arm(wait, 0.5)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            loop.advance(1001.0)
    loop.advance(1002.0)
    assert all(wait.fired_s is not None for wait in waits)


def test_waits_far_ahead_wake_nobody() -> None:
    """Connections that idle must not keep the process from sleeping."""
    loop = VirtualLoop()
    deadlines = wheel(loop)
    waits = [Wait(loop) for _ in range(3)]
    for number, wait in enumerate(waits):
        deadlines.arm(wait, 70.0 + number)
    loop.advance(1060.0)
    assert loop.wakes == 1
    soon = Wait(loop)
    deadlines.arm(soon, 0.2)
    loop.advance(1061.0)
    assert soon.fired_s == pytest.approx(1060.2, abs=2 * TICK_S)
    loop.advance(1080.0)
    assert all(wait.fired_s is not None for wait in waits)
