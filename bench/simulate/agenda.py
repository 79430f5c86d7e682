"""Virtual time: what is to happen when. It knows nothing of what it calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Calls in order of their time; those of one time in the order in which they were set. `now_ms` never goes back."""

    __slots__ = ("_count", "_heap", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    @property
    def next_ms(self) -> float | None:
        """When the next thing is due; None when nothing is left."""
        return self._heap[0][0] if self._heap else None

    def at(self, when_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        """Raises `ValueError` for a time that is past."""
        if when_ms < self.now_ms:
            raise ValueError(f"{when_ms} ms is past: it is {self.now_ms} ms")
        self._count += 1
        heapq.heappush(self._heap, (when_ms, self._count, call, arguments))

    def after(self, delay_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ms + max(0.0, delay_ms), call, *arguments)

    def step(self) -> bool:
        """Do the next thing; False when nothing is left."""
        if not self._heap:
            return False
        self.now_ms, _, call, arguments = heapq.heappop(self._heap)
        call(*arguments)
        return True
