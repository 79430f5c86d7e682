"""When does a thread come back? Learned from the gaps seen: of this thread, after this tool, of this client, of all.

Gaps of agents spread over five orders of magnitude (TraceLab: tools p50 0.285 s, p90 13.6 s; WEKA: p50 9.7 s, p99 2,183 s), so
that counts per bucket are kept and blended from the general to the particular: each level counts as so many gaps of the level
below. Bounded: old gaps fade, keys least recently used are forgotten.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from math import log

from kvtier.prefetch.survival import BUCKETS, EDGES_MS, NEVER, Survival, bucket_of

_PRIOR_GAPS = 4.0  # what a level's parent counts for
_FADE_AT = 256.0  # gaps of one key, then all its counts are halved
_OWN_GAPS = 8  # remembered of a thread, for tools and for people apart
_MAX_GROUPS = 4096

# (gap in ms, share back by then). Tools: between TraceLab's p25/50/90 of 58 ms, 285 ms and 13.6 s, which is the tool alone,
# and WEKA's p50 of 8.7 s after tool results, which has people in it. People: WEKA's p50 of 21 s, TraceLab's p50 of 84 s and p90
# of 1,236 s.
_TOOL_PRIOR = ((60.0, 0.12), (285.0, 0.3), (2_000.0, 0.5), (13_600.0, 0.78), (60_000.0, 0.9), (600_000.0, 0.97))
_PERSON_PRIOR = ((3_000.0, 0.1), (21_000.0, 0.35), (84_000.0, 0.55), (300_000.0, 0.72), (1_236_000.0, 0.85))


class GapCounts:
    """Fading counts of one key."""

    __slots__ = ("blend", "counts", "total")

    def __init__(self) -> None:
        self.counts = array("f", bytes(4 * BUCKETS))
        self.total = 0.0
        self.blend: tuple[list[float], list[float]] | None = None  # the parent's weights it was made with, and the result

    def add(self, bucket: int) -> None:
        self.counts[bucket] += 1.0
        self.total += 1.0
        self.blend = None
        if self.total > _FADE_AT:
            self.counts = array("f", [count / 2 for count in self.counts])
            self.total /= 2

    def over(self, parent: list[float]) -> list[float]:
        """Weights of this key, `parent` (which adds up to one) standing in for what it has not seen."""
        if self.blend is None or self.blend[0] is not parent:
            whole = self.total + _PRIOR_GAPS
            weights = [(own + _PRIOR_GAPS * inherited) / whole for own, inherited in zip(self.counts, parent, strict=True)]
            self.blend = (parent, weights)
        return self.blend[1]


class ReentryModel:
    """All calls are plain. `tool` "" means that a person is next."""

    def __init__(self, max_threads: int = 65_536) -> None:
        self._max_threads = max_threads
        self._priors = {True: _prior(_TOOL_PRIOR), False: _prior(_PERSON_PRIOR)}
        self._groups: OrderedDict[tuple[str, ...], GapCounts] = OrderedDict()
        self._threads: OrderedDict[tuple[str, bool], bytes] = OrderedDict()  # its last buckets, newest last

    def __len__(self) -> int:
        return len(self._groups) + len(self._threads)

    def returned(self, thread: str, tool: str, client: str, gap_ms: float) -> None:
        """The thread came back `gap_ms` after its last reply's end."""
        self._learn(thread, tool, client, bucket_of(max(0.0, gap_ms)))

    def lost(self, thread: str, tool: str, client: str) -> None:
        """The thread is over, or has idled beyond everything that would count as coming back."""
        self._learn(thread, tool, client, NEVER)

    def survival(self, thread: str, tool: str, client: str) -> Survival:
        weights = self._priors[bool(tool)]
        for key in _levels(tool, client):
            group = self._groups.get(key)
            if group is not None:
                weights = group.over(weights)
        own = self._threads.get((thread, bool(tool)))
        if own:
            weights = [_PRIOR_GAPS * weight for weight in weights]
            for bucket in own:
                weights[bucket] += 1.0
        return Survival(weights)

    def forget(self, thread: str) -> None:
        self._threads.pop((thread, True), None)
        self._threads.pop((thread, False), None)

    def _learn(self, thread: str, tool: str, client: str, bucket: int) -> None:
        for key in _levels(tool, client):
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = GapCounts()
            group.add(bucket)
            self._groups.move_to_end(key)
        while len(self._groups) > _MAX_GROUPS:
            self._groups.popitem(last=False)
        own = (thread, bool(tool))
        self._threads[own] = (self._threads.pop(own, b"") + bytes((bucket,)))[-_OWN_GAPS:]
        while len(self._threads) > self._max_threads:
            self._threads.popitem(last=False)


def _levels(tool: str, client: str) -> tuple[tuple[str, ...], ...]:
    """From the general to the particular."""
    kind = "tool" if tool else "person"
    return ((kind,), (kind, client), (kind, client, tool)) if tool else ((kind,), (kind, client))


def _prior(points: Sequence[tuple[float, float]]) -> list[float]:
    """Weights of one gap in all, log-uniform between the points."""
    known = [(1.0, 0.0), *points, (EDGES_MS[-1], points[-1][1])]
    back = [_between(known, edge) for edge in EDGES_MS]
    inner = [max(1e-6, after - before) for before, after in zip([0.0, *back], back, strict=False)]
    weights = [*inner, 1.0 - back[-1]]
    whole = sum(weights)
    return [weight / whole for weight in weights]


def _between(points: Sequence[tuple[float, float]], gap_ms: float) -> float:
    upper = next((i for i, point in enumerate(points) if point[0] >= gap_ms), len(points) - 1)
    (low_ms, low), (high_ms, high) = points[upper - 1], points[upper]
    return low + (high - low) * log(gap_ms / low_ms) / log(high_ms / low_ms)
