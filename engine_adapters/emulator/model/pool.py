"""A pool shared by nodes behind one engine's host tier (L3), as that engine uses it. Where pages lie is the pool's matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Pool(Protocol):
    """Pages by their chained hashes. All calls bring the time; none waits."""

    def extent(self, hashes: Sequence[int]) -> int:
        """How many leading ones of `hashes` it holds now."""
        ...

    def read(self, hashes: Sequence[int], now_ms: float) -> float:
        """Begin to copy `hashes` into this engine's host tier; when the last of them is there."""
        ...

    def write(self, hashes: Sequence[int], now_ms: float) -> None:
        """The engine has written these pages through to its host tier and offers them."""
        ...
