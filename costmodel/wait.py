"""How long waits take against what was predicted of them: one factor, learned online.

A queue's law depends on what no report tells: batches that share a fixed cost, chunks of others between one's own, turns that
join late. Whatever it is, waits are off by much the same factor for as long as the load stays alike. The factor follows the
median of what was seen, a small step at a time: single waits are mostly off by more than the law is.
"""

from __future__ import annotations

import math

_STEP = 0.02
_BOUND = math.log(3.0)


class WaitFactor:
    """Told pairs of waits in ms; `value` multiplies the next prediction."""

    def __init__(self, value: float = 1.0) -> None:
        self._log = min(max(math.log(max(value, 1e-9)), -_BOUND), _BOUND)
        self.value = math.exp(self._log)

    def observe(self, predicted_ms: float, actual_ms: float) -> None:
        """`predicted_ms` as it was told, so with the factor of that time."""
        if not (0 < predicted_ms < math.inf and -math.inf < actual_ms < math.inf):
            return
        step = _STEP if actual_ms > predicted_ms else -_STEP
        self._log = min(max(self._log + step, -_BOUND), _BOUND)
        self.value = math.exp(self._log)
