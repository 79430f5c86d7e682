"""A worker's circuit breaker: a pure state machine over outcomes, with `now_ms` passed in.

It counts transport failures and engine faults only. Back-pressure (503, 429) and client faults (4xx) never reach it: counting
those took whole fleets down in other routers (research: peers section 3).
"""

from __future__ import annotations

from collections import deque


class Breaker:
    """Opens after `failures` within `window_ms`, lets one trial through after `open_ms`, closes on its success."""

    __slots__ = ("_failed_at", "_failures", "_open_ms", "_open_until_ms", "_trial", "_window_ms")

    def __init__(self, *, failures: int, window_ms: float, open_ms: float) -> None:
        self._failures = failures
        self._window_ms = window_ms
        self._open_ms = open_ms
        self._failed_at: deque[float] = deque(maxlen=failures)
        self._open_until_ms: float | None = None
        self._trial = False

    def allows(self, now_ms: float) -> bool:
        if self._open_until_ms is None:
            return True
        return now_ms >= self._open_until_ms and not self._trial

    def on_dispatch(self) -> None:
        """While open, the dispatch that `allows` let through is the one trial."""
        if self._open_until_ms is not None:
            self._trial = True

    def on_success(self) -> None:
        self._failed_at.clear()
        self._open_until_ms = None
        self._trial = False

    def on_abandoned(self) -> None:
        """The client left before an outcome was known: the trial, if this was one, may be taken again."""
        self._trial = False

    def on_failure(self, now_ms: float) -> None:
        self._failed_at.append(now_ms)
        was_trial = self._open_until_ms is not None
        self._trial = False
        recent = len(self._failed_at) == self._failures and now_ms - self._failed_at[0] <= self._window_ms
        if was_trial or recent:
            self._open_until_ms = now_ms + self._open_ms

    def state(self, now_ms: float) -> str:
        if self._open_until_ms is None:
            return "closed"
        return "open" if now_ms < self._open_until_ms else "half-open"
