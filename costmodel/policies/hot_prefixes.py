"""How often each shared prefix was lately asked for: one that its holder cannot serve fast enough gets a second holder."""

from __future__ import annotations

import math

_WINDOW_MS = 10_000.0  # a use counts 1/e after this long
_MOST = 1024


class HotPrefixes:
    """Decayed counts by prefix, the least recently asked for out first."""

    def __init__(self) -> None:
        self._uses: dict[int, tuple[float, float]] = {}  # count at a time in ms, in order of use

    def copy(self) -> HotPrefixes:
        other = HotPrefixes()
        other._uses = dict(self._uses)
        return other

    def asked(self, prefix: int, now_ms: float) -> float:
        """Count one use; answers with how many others there were of late."""
        count, at_ms = self._uses.pop(prefix, (0.0, now_ms))
        others = count * math.exp(min(0.0, at_ms - now_ms) / _WINDOW_MS)
        self._uses[prefix] = (others + 1, now_ms)
        if len(self._uses) > _MOST:
            del self._uses[next(iter(self._uses))]
        return others
