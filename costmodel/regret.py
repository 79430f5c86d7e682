"""What the best other choice would have been worth, as far as that can be known afterwards.

For some turns the runner-up's prediction is kept when they are placed. When the first token has come, it is corrected by how
far predictions for that worker have lately been off, and set against what the chosen worker took. An estimate: the road not
taken is known by prediction alone. (`loadback sim --hindsight` takes it.)
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

from costmodel.accuracy import Accuracy

_WINDOW = 200
_MOST_BIAS = 0.9


class Regret:
    """Of one worker's turns. Values are worked out when asked for."""

    def __init__(self) -> None:
        self._lost_ms: deque[float] = deque(maxlen=_WINDOW)
        self.turns = 0

    def observe(self, actual_ms: float, rival_predicted_ms: float, rival: Accuracy) -> None:
        """`actual_ms`: time to the first token; `rival`: of the worker that came second."""
        bias = max(-_MOST_BIAS, min(_MOST_BIAS, rival.bias or 0.0))
        self._lost_ms.append(max(0.0, actual_ms - rival_predicted_ms / (1 - bias)))
        self.turns += 1

    @property
    def mean_ms(self) -> float | None:
        """Over the last 200 turns that were looked at; None before the first."""
        return fmean(self._lost_ms) if self._lost_ms else None

    @property
    def share(self) -> float | None:
        """Of these turns, those that would have had their first token sooner elsewhere."""
        return fmean(lost > 0 for lost in self._lost_ms) if self._lost_ms else None
