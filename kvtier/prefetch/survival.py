"""The distribution of one gap as survival at fixed instants: no mean, no point prediction, any spread.

Instants are half-octaves from 16 ms to 4.7 hours; between two of them the logarithm of time is uniform. What lies beyond the
last counts as not coming back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import log

FIRST_MS = 16.0
EDGES_MS = tuple(FIRST_MS * 2 ** (i / 2) for i in range(41))
BUCKETS = len(EDGES_MS) + 1  # below the first, between two, beyond the last
NEVER = BUCKETS - 1
_LOGS = tuple(log(edge) for edge in EDGES_MS)


def bucket_of(gap_ms: float) -> int:
    return bisect_right(EDGES_MS, gap_ms)


class Survival:
    """Made of one weight a bucket, which need not add up to one."""

    __slots__ = ("_returned",)

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        self._returned = [mass / total for mass in accumulate(weights[:NEVER])]  # by each edge

    def returned_by(self, gap_ms: float) -> float:
        """P(gap <= `gap_ms`)."""
        if gap_ms <= 0:
            return 0.0
        at = bucket_of(gap_ms)
        if at == 0:
            return self._returned[0] * gap_ms / FIRST_MS
        before = self._returned[at - 1]
        if at == NEVER:
            return before
        share = (log(gap_ms) - _LOGS[at - 1]) / (_LOGS[at] - _LOGS[at - 1])
        return before + share * (self._returned[at] - before)

    def within(self, elapsed_ms: float, window_ms: float) -> float:
        """P(the gap ends in the next `window_ms`), of one that has lasted for `elapsed_ms`."""
        gone = self.returned_by(elapsed_ms)
        left = 1.0 - gone
        return (self.returned_by(elapsed_ms + window_ms) - gone) / left if left > 1e-9 else 0.0

    def quantile(self, elapsed_ms: float, share: float) -> float:
        """From now on, when `share` of the gaps that have lasted for `elapsed_ms` will have ended; inf if they never will."""
        gone = self.returned_by(elapsed_ms)
        if gone >= 1.0 - 1e-9:
            return float("inf")
        wanted = gone + share * (1.0 - gone)
        for edge in EDGES_MS[bucket_of(elapsed_ms) :]:
            if self.returned_by(edge) >= wanted:
                return max(0.0, edge - elapsed_ms)
        return float("inf")

    def first_instant(self, elapsed_ms: float, window_ms: float, least: float) -> float | None:
        """The earliest gap from `elapsed_ms` on, itself or an edge, at which `within(gap, window_ms)` is at least `least`."""
        if self.within(elapsed_ms, window_ms) >= least:
            return elapsed_ms
        for edge in EDGES_MS[bucket_of(elapsed_ms) :]:
            if self.within(edge, window_ms) >= least:
                return edge
        return None
