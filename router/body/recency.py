"""A bounded map that forgets what has not been used for long."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentMap(Generic[K, V]):
    """Holds at most `capacity` entries in two generations: a hit in the old one moves the entry to the young one, and when
    the young one has filled its half, the old one is dropped. Near to LRU at the price of a plain dict, without a move per hit.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None and (value := self._old.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._half and key not in self._young:
            self._old = self._young
            self._young = {}
        self._young[key] = value
