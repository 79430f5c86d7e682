"""How many turns may be retried: a share of recent turns, plus a floor, in a sliding window.

Without it a fleet-wide fault is multiplied by the number of tries.
"""

from __future__ import annotations

from router.config.tree import RetryConfig

_WINDOW_MS = 10_000.0


class RetryBudget:
    """Counts over two half-overlapping windows; all times are passed in."""

    def __init__(self, config: RetryConfig) -> None:
        self._ratio = config.budget_ratio
        self._floor = config.budget_floor
        self._window_from_ms = 0.0
        self._turns = [0, 0]  # this window, the one before
        self._retries = [0, 0]

    def on_turn(self, now_ms: float) -> None:
        self._roll(now_ms)
        self._turns[0] += 1

    def take(self, now_ms: float) -> bool:
        """Spend one retry if the window allows it."""
        self._roll(now_ms)
        if sum(self._retries) >= self._floor + self._ratio * sum(self._turns):
            return False
        self._retries[0] += 1
        return True

    def _roll(self, now_ms: float) -> None:
        passed = now_ms - self._window_from_ms
        if passed < _WINDOW_MS:
            return
        kept = passed < 2 * _WINDOW_MS
        for counts in (self._turns, self._retries):
            counts[1] = counts[0] if kept else 0
            counts[0] = 0
        self._window_from_ms = now_ms
