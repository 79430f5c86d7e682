"""What came by each way, and how long the way was busy: counters since the agent's start, for whoever fits links to them.

Ways are named as tiers are: `L3` (engines here read this node's DRAM), `L3:NODE` (from another node's), `L4` (from SSD). Moves
beside each other are busy once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOCAL = "L3"
SSD = "L4"
_MOST_WAYS = 256


def from_node(node: str) -> str:
    return f"{LOCAL}:{node}"


class Traffic:
    """`clock_ms` is the store's. Beyond 256 ways nothing new is counted."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._ways: dict[str, _Way] = {}

    def told(self, way: str, size_bytes: int, busy_ms: float) -> None:
        """Somebody else has moved so much, and was busy with it so long until now."""
        if size_bytes > 0 and busy_ms > 0 and (found := self._way(way)) is not None:
            found.told(self._clock_ms(), size_bytes, busy_ms)

    @contextmanager
    def timing(self, way: str) -> Iterator[Callable[[int], None]]:
        """Busy until it is left; what it gives is to be told the bytes that came. Where none did the time does not count."""
        found = self._way(way) or _Way()
        found.enter(self._clock_ms())
        moved = 0

        def came(size_bytes: int) -> None:
            nonlocal moved
            moved += size_bytes

        try:
            yield came
        finally:
            found.leave(self._clock_ms(), moved)

    def numbers(self) -> dict[str, float]:
        """`moved_bytes:WAY` and `moved_busy_ms:WAY`."""
        numbers: dict[str, float] = {}
        for name, way in self._ways.items():
            numbers |= {f"moved_bytes:{name}": float(way.size_bytes), f"moved_busy_ms:{name}": way.busy_ms}
        return numbers

    def _way(self, name: str) -> _Way | None:
        way = self._ways.get(name)
        if way is None and len(self._ways) < _MOST_WAYS:
            way = self._ways[name] = _Way()
        return way


class _Way:
    """Time counts once the moves that shared it have ended, if any of them brought something."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.busy_ms = 0.0
        self._moving = 0
        self._since_ms = 0.0
        self._came = 0
        self._told_ms = -math.inf

    def told(self, now_ms: float, size_bytes: int, busy_ms: float) -> None:
        """The ranks of an engine read beside each other: what was counted up to the last word does not count again."""
        self.size_bytes += size_bytes
        self.busy_ms += now_ms - max(now_ms - busy_ms, self._told_ms)
        self._told_ms = now_ms

    def enter(self, now_ms: float) -> None:
        if not self._moving:
            self._since_ms, self._came = now_ms, 0
        self._moving += 1

    def leave(self, now_ms: float, size_bytes: int) -> None:
        self._moving -= 1
        self._came += size_bytes
        if not self._moving and self._came:
            self.size_bytes += self._came
            self.busy_ms += now_ms - self._since_ms
