"""A line y = intercept + slope x, fitted online by recursive least squares on relative errors.

Relative, because prefills span four orders of magnitude and an error of 10 % matters alike on each. Old observations fade;
where the data say nothing of a direction (every x the same) the fading stops there, or the covariance would blow up.
"""

from __future__ import annotations

import math

_FORGETTING = 0.98
_NOISE = 0.1  # expected relative error of one observation
_PRIOR_SPREAD = 2.0  # the prior may be off by a few times itself
_CLIP = 2.0  # residual of one observation, relative to the prediction
_SETTLED, _SETTLED_CLIP = 16, 0.5  # after so many one far above says less: mostly it holds a wait that nothing told of
_UNSURE = 4  # observations, after which one far above says no more of the machine than others
_TELLING_SHARE = 0.1  # of the typical x, below which one observation tells nothing of the slope
_FLOOR = 1e-9
_LEAST_INTERCEPT = 0.02  # of the smallest recent y, and
_LEAST_SLOPE = 0.001  # of a typical y over a typical x: noise must not fit either coefficient away
_MEAN_WEIGHT = 0.05
_LEAST_X = 1e-6  # nothing that is counted here comes in smaller parts
_CEILING = 1e15  # beyond any time in ms or count of tokens: not a measurement


class RelativeLine:
    """Intercept and slope stay positive and finite. `typical_x` scales the slope's share of the prior's uncertainty."""

    def __init__(self, intercept: float, slope: float, typical_x: float) -> None:
        self.intercept = max(intercept, _FLOOR)
        self.slope = max(slope, _FLOOR)
        self.observed = 0
        self._typical_x = typical_x
        self._mean_x = self._mean_y = self._least_y = 0.0
        typical_y = self.intercept + self.slope * typical_x
        # Each coefficient could account for the whole of a typical y, whatever the prior's own split.
        self._max_aa = (_PRIOR_SPREAD * typical_y) ** 2
        self._max_bb = (_PRIOR_SPREAD * typical_y / typical_x) ** 2
        self._aa, self._ab, self._bb = self._max_aa, 0.0, self._max_bb

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def observe(self, x: float, y: float) -> None:
        """One measured point; ignored unless x is 0 or of a plausible size and y finite and positive."""
        if not ((x == 0 or _LEAST_X < x < _CEILING) and 0 < y < _CEILING):
            return
        predicted = self.at(x)
        upper = _CLIP if self.observed < _SETTLED else _SETTLED_CLIP
        residual = min(max(y - predicted, -_CLIP * predicted), upper * predicted)
        if y > (1 + _CLIP) * predicted and self.observed < _UNSURE:
            self._start_from(x, y)
            residual = y - self.at(x)
            predicted = self.at(x)
        self.observed += 1
        gain_a, gain_b = self._gain(x, predicted)
        self._take_in(x, y)
        least_slope = _LEAST_SLOPE * self._mean_y / self._mean_x if self._mean_x > 0 else 0.0
        wanted = predicted + (gain_a + gain_b * x) * residual
        self.intercept += gain_a * residual
        self.slope += gain_b * residual
        self._clamp(max(_LEAST_INTERCEPT * self._least_y, _FLOOR), max(least_slope, _FLOOR), x, wanted)

    def _clamp(self, least_intercept: float, least_slope: float, x: float, wanted: float) -> None:
        """A coefficient that stops at its limit leaves the rest of the step to the other, so that the line passes through what
        was `wanted` at x all the same: it alone would be left where only both together fit."""
        if self.intercept < least_intercept:
            self.intercept = least_intercept
            if x > 0:
                self.slope = (wanted - least_intercept) / x
        if self.slope < least_slope:
            self.slope = least_slope
            self.intercept = max(wanted - least_slope * x, least_intercept)

    def _take_in(self, x: float, y: float) -> None:
        weight = max(_MEAN_WEIGHT, 1 / self.observed)
        self._mean_x += weight * (x - self._mean_x)
        self._mean_y += weight * (y - self._mean_y)
        self._least_y = y if self.observed == 1 else min(y, self._least_y / _FORGETTING)

    def _start_from(self, x: float, y: float) -> None:
        """One of the first observations shows the prior to be of another kind of machine: scale it as a whole. At a small x
        that is known of the intercept alone: a first hit takes its time whatever the slope."""
        scale = y / self.at(x)
        self._max_aa *= scale * scale
        if x < _TELLING_SHARE * self._typical_x:
            self.intercept = y - self.slope * x
        else:
            self.intercept *= scale
            self.slope *= scale
            self._max_bb *= scale * scale
        self._aa, self._ab, self._bb = self._max_aa, 0.0, self._max_bb

    def _gain(self, x: float, predicted: float) -> tuple[float, float]:
        """Kalman gain of this observation; updates the covariance."""
        along_a = self._aa + self._ab * x
        along_b = self._ab + self._bb * x
        total = (_NOISE * predicted) ** 2 + along_a + along_b * x
        gain_a, gain_b = along_a / total, along_b / total
        self._aa -= gain_a * along_a
        self._ab -= gain_a * along_b
        self._bb -= gain_b * along_b
        self._fade()
        return gain_a, gain_b

    def _fade(self) -> None:
        """Old observations count less, but never below what the prior knew; the covariance stays positive definite."""
        self._aa = min(max(self._aa, 0.0) / _FORGETTING, self._max_aa)
        self._bb = min(max(self._bb, 0.0) / _FORGETTING, self._max_bb)
        limit = 0.999 * math.sqrt(self._aa * self._bb)
        self._ab = min(max(self._ab / _FORGETTING, -limit), limit)
