"""Decayed hit counts that need no decaying: the logarithm of an exponentially decayed count, referred to time zero.

A count that halves every half-life and is looked at as log2 grows by now/half_life on one side and shrinks by the same on the
other, so the referred value stands still between hits. Values of different pages can be compared at any time without a clock.
"""

from __future__ import annotations

from math import log2

NEVER = float("-inf")


def warmed(heat: float, now_ms: float, half_life_ms: float) -> float:
    """`heat` after one more hit at `now_ms`; NEVER for a page without any."""
    fresh = now_ms / half_life_ms
    if heat == NEVER:
        return fresh
    high, low = (heat, fresh) if heat > fresh else (fresh, heat)
    return high + log2(1.0 + 2.0 ** (low - high))


def hits_at(heat: float, now_ms: float, half_life_ms: float) -> float:
    """The decayed count itself."""
    return float(2.0 ** min(heat - now_ms / half_life_ms, 60.0))
