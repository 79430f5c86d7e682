"""How late the event loop comes to what it should do: the longest that any byte may have waited for another's work.

A timer is set again and again, and its delay is taken when its callback runs. That is after the thread has got the interpreter
back, so what other threads hold it for counts as well. The loop's timers are whole
milliseconds: below one the figure says nothing.
"""

from __future__ import annotations

import asyncio
import time

from router.histogram import Histogram

_INTERVAL_S = 0.1  # each wakes an idle process: 50 a second took 6 ms of CPU a second, a tenth of what 40 agentic turns take
_BUCKETS_MS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)


class LoopLag:
    """Started and closed by the gateway. `worst_ms`: since the last time that it was asked for."""

    def __init__(self) -> None:
        self.histogram = Histogram(_BUCKETS_MS)
        self._worst_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = time.monotonic() + _INTERVAL_S
        self._timer = loop.call_later(_INTERVAL_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_worst_ms(self) -> float:
        worst, self._worst_ms = self._worst_ms, 0.0
        return worst

    def _tick(self) -> None:
        lag_ms = max(0.0, time.monotonic() - self._due_s) * 1000
        self.histogram.observe(lag_ms)
        self._worst_ms = max(self._worst_ms, lag_ms)
        self.start()
