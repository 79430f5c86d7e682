"""How sure a ratio of quantiles is: sessions are drawn anew, since calls of one session are no independent samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from bench.validate.timed import Timed, quantile


class Ratio(msgspec.Struct, frozen=True):
    """Predicted over measured, with the bounds of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


Pairs = Sequence[tuple[Sequence[float], Sequence[float]]]  # of each session: predicted, measured


def by_session(predicted: Sequence[Timed], measured: Sequence[Timed]) -> list[tuple[list[float], list[float]]]:
    """TTFTs of each session in both. Raises KeyError when a session is missing in one."""
    left, right = _ttfts(predicted), _ttfts(measured)
    return [(left[session], right[session]) for session in right]


def ratio(pairs: Pairs, share: float, draws: int, rng: Random) -> Ratio:
    """Of the quantile `share`."""
    drawn = sorted(_ratio(rng.choices(pairs, k=len(pairs)), share) for _ in range(draws))
    return Ratio(_ratio(pairs, share), quantile(drawn, 0.025), quantile(drawn, 0.975))


def _ratio(pairs: Pairs, share: float) -> float:
    predicted = [value for session, _ in pairs for value in session]
    measured = [value for _, session in pairs for value in session]
    return quantile(predicted, share) / quantile(measured, share)


def _ttfts(calls: Sequence[Timed]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for timed in calls:
        found.setdefault(timed.session, []).append(timed.ttft_ms)
    return found
