"""Restore cuts: pages from which on a worker had better compute than restore, for a short while.

An engine restores all that its storage says it has; saying less is the only way to make it recompute the rest (the cost model's
k*). A cut is set just before the turn is sent and forgotten soon, so that the next turn is not cut by mistake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_CUTS = 4096


class RestoreCuts:
    """Bounded; the oldest cut goes first."""

    def __init__(self, max_ttl_ms: float = 60_000) -> None:
        self._max_ttl_ms = max_ttl_ms
        self._until_ms: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def set(self, worker: str, digest: bytes, ttl_ms: float, now_ms: float) -> None:
        """`worker` restores nothing from the page with this digest on."""
        key = (worker, digest)
        self._until_ms[key] = now_ms + min(ttl_ms, self._max_ttl_ms)
        self._until_ms.move_to_end(key)
        if len(self._until_ms) > MAX_CUTS:
            self._until_ms.popitem(last=False)

    def limit(self, worker: str, digests: Iterable[bytes], count: int, now_ms: float) -> int:
        """How many of these `count` pages, from the first on, the worker may restore."""
        if not self._until_ms:
            return count
        for index, digest in enumerate(digests):
            until_ms = self._until_ms.get((worker, digest))
            if until_ms is None:
                continue
            if until_ms > now_ms:
                return index
            del self._until_ms[worker, digest]
        return count
