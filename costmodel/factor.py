"""How long something takes against what its law says: one factor, learned online.

A queue's law depends on what no report tells: batches that share a fixed cost, chunks of others between one's own, turns that
join late. Whatever it is, times are off by much the same factor for as long as the load stays alike. The factor follows the
median of what was seen, a small step at a time: single times are mostly off by more than the law is.
"""

from __future__ import annotations

import math

_STEP = 0.02


class MedianFactor:
    """Told pairs of times in ms; `value` multiplies the next prediction, and stays between 1 / `bound` and `bound`.

    With a `first_step` (of the logarithm) it goes fast at first, and its steps shrink with the root of their number.
    """

    def __init__(self, value: float = 1.0, *, bound: float = 3.0, first_step: float = _STEP) -> None:
        self._bound = math.log(bound)
        self._first_step = first_step
        self._log = self._bounded(math.log(max(value, 1e-9)))
        self.value = math.exp(self._log)
        self.observed = 0

    def observe(self, predicted_ms: float, actual_ms: float) -> None:
        """`predicted_ms` as it was told, so with the factor of that time."""
        if not (0 < predicted_ms < math.inf and -math.inf < actual_ms < math.inf):
            return
        self.observed += 1
        step = max(_STEP, self._first_step / math.sqrt(self.observed))
        self._set(self._log + (step if actual_ms > predicted_ms else -step))

    def rescale(self, by: float) -> None:
        """The law itself has changed: what it says now is `1 / by` of what it said."""
        if 0 < by < math.inf:
            self._set(self._log + math.log(by))

    def _set(self, log: float) -> None:
        self._log = self._bounded(log)
        self.value = math.exp(self._log)

    def _bounded(self, log: float) -> float:
        return min(max(log, -self._bound), self._bound)
