"""A worker's circuit breaker: a pure state machine over outcomes, with `now_ms` passed in.

It counts transport failures and engine faults only. Back-pressure (503, 429) and client faults (4xx) never reach it: counting
those took whole fleets down in other routers (research: peers section 3).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_DOUBTFUL_FOR_ONE = 4  # a request that no worker served is probably at fault itself


class _Failure(NamedTuple):
    at_ms: float
    answered: bool  # with a 5xx; else nobody was there, or nothing came


class Breaker:
    """Opens after `failures` within `window_ms`, lets one trial through after `open_ms`, closes on its success."""

    __slots__ = ("_doubtful", "_failed", "_failures", "_open_ms", "_open_until_ms", "_trial", "_window_ms")

    def __init__(self, *, failures: int, window_ms: float, open_ms: float) -> None:
        self._failures = failures
        self._window_ms = window_ms
        self._open_ms = open_ms
        self._failed: deque[_Failure] = deque(maxlen=failures)
        self._open_until_ms: float | None = None
        self._doubtful = 0
        self._trial = False

    def allows(self, now_ms: float) -> bool:
        if self._open_until_ms is None:
            return True
        return now_ms >= self._open_until_ms and not self._trial

    @property
    def answers(self) -> bool:
        """Whether the worker was there in each of the failures that count: where no other is left it may be asked all the
        same. What is wrong may be the requests, and its own answer says more than that nobody is ready."""
        return all(failure.answered for failure in self._failed)

    def on_dispatch(self) -> None:
        """While open, the dispatch that `allows` let through is the one trial."""
        if self._open_until_ms is not None:
            self._trial = True

    def on_success(self) -> None:
        self._failed.clear()
        self._doubtful = 0
        self._open_until_ms = None
        self._trial = False

    def on_abandoned(self) -> None:
        """The client left before an outcome was known: the trial, if this was one, may be taken again."""
        self._trial = False

    def on_failure(self, now_ms: float, *, answered: bool = False) -> None:
        """`answered`: with a 5xx."""
        self._failed.append(_Failure(now_ms, answered))
        was_trial = self._open_until_ms is not None
        self._trial = False
        recent = len(self._failed) == self._failures and now_ms - self._failed[0].at_ms <= self._window_ms
        if was_trial or recent:
            self._open_until_ms = now_ms + self._open_ms

    def on_doubtful_failure(self, now_ms: float) -> None:
        """A 5xx to a request that nobody served. Several count as one: a pool that is broken as a whole is still noticed."""
        self._trial = False
        self._doubtful += 1
        if self._doubtful >= _DOUBTFUL_FOR_ONE:
            self._doubtful = 0
            self.on_failure(now_ms, answered=True)

    def state(self, now_ms: float) -> str:
        if self._open_until_ms is None:
            return "closed"
        return "open" if now_ms < self._open_until_ms else "half-open"
