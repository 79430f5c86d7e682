"""What is to be looked at when: one heap for all, so that a thousand idle threads cost nothing until one of them is due."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_SLACK = 64


class Timers(Generic[_K]):
    """One time a key. Replaced and cancelled entries stay in the heap until they surface or outnumber the live ones."""

    __slots__ = ("_count", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _K]] = []
        self._live: dict[_K, int] = {}  # the entry that counts
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: _K, when_ms: float) -> None:
        self._count += 1
        self._live[key] = self._count
        heappush(self._heap, (when_ms, self._count, key))
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def cancel(self, key: _K) -> None:
        self._live.pop(key, None)

    @property
    def next_ms(self) -> float | None:
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> Iterator[_K]:
        """Each key whose time has come, once; keys that are set meanwhile come too if they are due."""
        while True:
            self._drop_dead()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            key = heappop(self._heap)[2]
            del self._live[key]
            yield key

    def _drop_dead(self) -> None:
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
