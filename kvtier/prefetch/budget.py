"""Bytes that prefetch may have in flight and staged, per link and per node, and the pace that demand leaves it."""

from __future__ import annotations

from collections import defaultdict

from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.view import LinkState, Path

_FLOOR_BYTES_PER_MS = 1.0


class Budgets:
    """What is started must be ended, what is reserved must be given back; both are counted, never guessed."""

    def __init__(self, params: PrefetchParams) -> None:
        self._params = params
        self._links: defaultdict[Path, int] = defaultdict(int)
        self._nodes: defaultdict[str, int] = defaultdict(int)
        self._held: defaultdict[str, int] = defaultdict(int)
        self._free_at_ms: dict[Path, float] = {}

    def replace(self, params: PrefetchParams) -> None:
        """Other bounds from now on; what is in flight stays counted."""
        self._params = params

    def pace(self, state: LinkState) -> float:
        """Bytes per ms on a link now; 0 = nothing may start."""
        if state.demand_waiting:
            return 0.0
        spare = state.link.bytes_per_ms - state.demand_bytes_per_ms
        pace = self._params.link_share * spare
        return pace if pace >= _FLOOR_BYTES_PER_MS else 0.0

    def may_start(self, path: Path, size_bytes: int, now_ms: float) -> bool:
        return (
            self._free_at_ms.get(path, now_ms) <= now_ms
            and self._links[path] + size_bytes <= self._params.link_inflight_bytes
            and all(self._nodes[node] + size_bytes <= self._params.node_inflight_bytes for node in set(path))
        )

    def room(self, node: str) -> int:
        """Bytes that may still be reserved there."""
        return self._params.node_held_bytes - self._held[node]

    def reserve(self, node: str, size_bytes: int) -> None:
        self._held[node] += size_bytes

    def give_back(self, node: str, size_bytes: int) -> None:
        self._held[node] -= size_bytes

    def start(self, path: Path, size_bytes: int, pace: float, now_ms: float) -> None:
        """From here on the link is taken for as long as `size_bytes` take at this pace, however fast they arrive."""
        self._free_at_ms[path] = now_ms + size_bytes / pace
        self._links[path] += size_bytes
        for node in set(path):
            self._nodes[node] += size_bytes

    def end(self, path: Path, size_bytes: int) -> None:
        self._links[path] -= size_bytes
        for node in set(path):
            self._nodes[node] -= size_bytes

    def inflight(self, path: Path) -> int:
        return self._links[path]

    def node_inflight(self, node: str) -> int:
        return self._nodes[node]

    def held(self, node: str) -> int:
        return self._held[node]

    def free_at(self, path: Path, now_ms: float) -> float | None:
        """When the pace lets the link go; None where it waits for moves that are under way."""
        free = self._free_at_ms.get(path, now_ms)
        return free if free > now_ms else None

    def rest(self, path: Path, until_ms: float) -> None:
        """Nothing starts on the link before then."""
        self._free_at_ms[path] = max(until_ms, self._free_at_ms.get(path, until_ms))

    @property
    def idle(self) -> bool:
        return not (any(self._links.values()) or any(self._nodes.values()) or any(self._held.values()))
