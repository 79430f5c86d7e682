"""Whether a worker's cache is full and how fast it turns over, from what it tells of stores and removals in one tier.

While there is room, computing evicts nothing. Once there is none every computed token pushes out another one.
"""

from __future__ import annotations

import math

_WINDOW_MS = 60_000.0  # a token counts 1/e after this long


class Turnover:
    """Told cumulative counts. Counts that went back are another process's: they are begun with anew.

    `evicting`: tokens evicted for each that is stored, from 0 to 1; 1 while nothing is known. `replaced_ms`: in which all that
    is held would be evicted at the pace of the last minute, 0 while nothing is.
    """

    __slots__ = ("_computed", "_removed", "_stored", "_told", "_told_ms", "evicting", "replaced_ms")

    def __init__(self) -> None:
        self._told: tuple[float, float] | None = None
        self._computed: float | None = None
        self._told_ms = 0.0
        self._stored = self._removed = 0.0  # decayed
        self.evicting = 1.0
        self.replaced_ms = 0.0

    def observe_computed(self, tokens: float, capacity_tokens: float, now_ms: float) -> None:
        """All that a worker has computed since it began, for as long as it tells nothing else. Less than its cache takes cannot
        have pushed anything out."""
        if self._told is not None:
            return
        self.evicting = 0.0 if tokens < capacity_tokens else 1.0
        before, self._computed = self._computed, tokens
        self._fade(now_ms)
        if before is not None:
            self._removed += self.evicting * max(0.0, tokens - before)
        self._replaced(capacity_tokens)

    def observe(self, stored_tokens: float, removed_tokens: float, now_ms: float) -> None:
        before, self._told = self._told, (stored_tokens, removed_tokens)
        self._fade(now_ms)
        if before is None:
            self._removed = 0.0  # what was only reckoned
        else:
            self._stored += max(0.0, stored_tokens - before[0])
            self._removed += max(0.0, removed_tokens - before[1])
        self.evicting = min(1.0, self._removed / self._stored) if self._stored else 0.0
        self._replaced(max(0.0, stored_tokens - removed_tokens))

    def _fade(self, now_ms: float) -> None:
        decay = math.exp(min(0.0, self._told_ms - now_ms) / _WINDOW_MS)
        self._told_ms = now_ms
        self._stored *= decay
        self._removed *= decay

    def _replaced(self, held_tokens: float) -> None:
        self.replaced_ms = held_tokens * _WINDOW_MS / self._removed if self._removed > 0 else 0.0
