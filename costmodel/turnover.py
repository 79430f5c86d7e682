"""Whether a worker's cache is full, from what it tells of stores and removals in L1.

While there is room, computing evicts nothing. Once there is none every computed token pushes out another one.
"""

from __future__ import annotations

import math

_WINDOW_MS = 60_000.0  # a token counts 1/e after this long


class Turnover:
    """Told cumulative counts of one tier. Counts that went back are another process's: they are begun with anew.

    `evicting`: tokens evicted for each that is stored, from 0 to 1; 1 while nothing is known. `replaced_ms`: in which all that
    is held would be evicted at the pace of the last minute, 0 while nothing is.
    """

    __slots__ = ("_removed", "_stored", "_told", "_told_ms", "evicting", "replaced_ms")

    def __init__(self) -> None:
        self._told: tuple[float, float] | None = None
        self._told_ms = 0.0
        self._stored = self._removed = 0.0  # decayed
        self.evicting = 1.0
        self.replaced_ms = 0.0

    def observe_computed(self, tokens: float, capacity_tokens: float) -> None:
        """All that a worker has computed since it began. Less than its cache takes cannot have pushed anything out."""
        if self._told is None:
            self.evicting = 0.0 if tokens < capacity_tokens else 1.0

    def observe(self, stored_tokens: float, removed_tokens: float, now_ms: float) -> None:
        before, self._told = self._told, (stored_tokens, removed_tokens)
        decay = math.exp(min(0.0, self._told_ms - now_ms) / _WINDOW_MS)
        self._told_ms = now_ms
        if before is not None:
            self._stored = self._stored * decay + max(0.0, stored_tokens - before[0])
            self._removed = self._removed * decay + max(0.0, removed_tokens - before[1])
        self.evicting = min(1.0, self._removed / self._stored) if self._stored else 0.0
        held = max(0.0, stored_tokens - removed_tokens)
        self.replaced_ms = held * _WINDOW_MS / self._removed if self._removed > 0 else 0.0
