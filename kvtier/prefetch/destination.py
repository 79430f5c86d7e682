"""Will the turn go where it is expected? Counted: how often forecasts came true, by how much dearer the next candidate was.

A forecast is made when an idle thread is weighed and settled when its turn is placed. What a plan itself changes belongs to the
margin: pages that are staged make their node cheaper. A thread whose KV lies elsewhere is mostly weighed because its own worker
is busy at that moment, and goes back there: forecasts that it moves are counted apart. Bounded: old forecasts fade.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from math import inf

import msgspec

from costmodel.values import Decision, Scored, WorkerKey

_FIRST_MS = 1.0
_BUCKETS = 14  # below 1 ms, then octaves, and beyond 4 s
_AGAINST = -1  # the bucket of those that only a queue speaks for
_AGAINST_SHARE = 0.25  # of them is believed to come true
_PRIOR_FORECASTS = 4.0  # what the belief below counts for
_FADE_AT = 256.0  # forecasts of one bucket, then its counts are halved
_NEAR_SHARE, _FAR_SHARE, _FAR_MS = 0.5, 0.95, 4_000.0  # believed at first: of a tie, and of a margin that no queue makes up


class Forecast(msgspec.Struct, frozen=True, gc=False):
    """Where a thread's next turn would go. `moves`: not where it last ran. `margin_ms` as in `Target`, with what is planned
    already counted in."""

    worker: WorkerKey
    node: str
    pool: str
    moves: bool
    margin_ms: float


class DestinationModel:
    """All calls are plain."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bool, int], list[float]] = {}  # right, all

    def settled(self, forecast: Forecast, *, right: bool) -> None:
        """The thread's turn was placed. A forecast without an alternative teaches nothing."""
        if forecast.margin_ms == inf:
            return
        counts = self._counts.setdefault((forecast.pool, forecast.moves, _bucket(forecast.margin_ms)), [0.0, 0.0])
        counts[0] += right
        counts[1] += 1.0
        if counts[1] > _FADE_AT:
            counts[0] /= 2
            counts[1] /= 2

    def odds(self, pool: str, margin_ms: float, *, moves: bool) -> float:
        """P(the turn goes there)."""
        if margin_ms == inf:
            return 1.0
        right, whole = self._counts.get((pool, moves, _bucket(margin_ms)), (0.0, 0.0))
        return (right + _PRIOR_FORECASTS * _believed(margin_ms)) / (whole + _PRIOR_FORECASTS)


def margin_ms(decision: Decision, neighbours: AbstractSet[WorkerKey] = frozenset()) -> float:
    """How much dearer the cheapest prefill of another node would have been, of a decision made under `explain`; inf without
    one, negative where only a queue spoke against it: queues are others by the time that the turn comes. `neighbours`: workers
    of the chosen one's node."""
    chosen = decision.chosen
    others = (
        _lasting_ms(other) for other in decision.others if other.prefill != chosen.prefill and other.prefill not in neighbours
    )
    return min(others, default=inf) - _lasting_ms(chosen)


def _lasting_ms(scored: Scored) -> float:
    """What a choice costs by where the KV lies."""
    return scored.terms.exposed_ms + scored.terms.compute_ms


def _believed(margin: float) -> float:
    if margin < 0:
        return _AGAINST_SHARE
    return _NEAR_SHARE + (_FAR_SHARE - _NEAR_SHARE) * min(1.0, margin / _FAR_MS)


def _bucket(margin: float) -> int:
    if margin < 0:
        return _AGAINST
    bucket, edge = 0, _FIRST_MS
    while bucket < _BUCKETS - 1 and margin >= edge:
        bucket, edge = bucket + 1, 2 * edge
    return bucket
