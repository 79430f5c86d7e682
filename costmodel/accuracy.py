"""How far predictions have lately been off, and whether that has changed: the median of recent relative errors."""

from __future__ import annotations

from collections import deque
from statistics import median

_WINDOW, _RECENT = 200, 40
_DRIFT_FACTOR, _DRIFT_LEAST = 2.0, 0.3  # recent errors this much larger than before, and this large


class Accuracy:
    """Of times to the first token, as predicted when a turn was placed. Medians are worked out when asked for."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=_WINDOW)  # signed: above 0 took longer than predicted
        self.turns = 0

    def observe(self, predicted_ms: float, actual_ms: float) -> None:
        if actual_ms > 0:
            self._errors.append(1 - predicted_ms / actual_ms)
            self.turns += 1

    @property
    def error(self) -> float | None:
        """Median of |predicted - actual| / actual over the last 200 turns; None before the first."""
        return median(map(abs, self._errors)) if self._errors else None

    @property
    def bias(self) -> float | None:
        """Median of (actual - predicted) / actual: above 0 turns take longer than predicted."""
        return median(self._errors) if self._errors else None

    @property
    def drifting(self) -> bool:
        """The last 40 turns are off by far more than those before them: something has changed that is not learned yet."""
        if len(self._errors) < 2 * _RECENT:
            return False
        errors = [abs(error) for error in self._errors]
        recent, before = median(errors[-_RECENT:]), median(errors[:-_RECENT])
        return recent > _DRIFT_LEAST and recent > _DRIFT_FACTOR * before
