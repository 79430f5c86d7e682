"""How often what warm requests brought up was used, against what was expected of them.

The odds of a warm request are a product of estimates, each made when the thread was weighed, and only the best of many are
acted on: such products promise too much. What became of those that were sent says by how much. Old outcomes fade, so that a
planner that has stopped warming tries again after a while.
"""

from __future__ import annotations

_HALF_LIFE_MS = 600_000.0
_PRIOR = 4.0  # outcomes that the belief in the odds as they are counts for


class WarmTrust:
    """Of one pool. All calls are plain."""

    def __init__(self) -> None:
        self._used = 0.0
        self._expected = 0.0
        self._faded_ms = 0.0

    def settled(self, expected: float, *, used: bool, now_ms: float) -> None:
        """A job that was warmed has ended. `expected`: P(it is used), as it was weighed."""
        self._fade(now_ms)
        self._used += used
        self._expected += expected

    def factor(self, now_ms: float) -> float:
        """What odds should be multiplied by: at most 1."""
        self._fade(now_ms)
        return min(1.0, (self._used + _PRIOR) / (self._expected + _PRIOR))

    def _fade(self, now_ms: float) -> None:
        left = 0.5 ** ((now_ms - self._faded_ms) / _HALF_LIFE_MS)
        self._used *= left
        self._expected *= left
        self._faded_ms = now_ms
