"""What a token's KV takes in bytes, by pool: as configured until agents have moved some."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial

from router.fleet.pool import Pool

_TOLD = 8  # stages; of an engine that came back with another KV type the old ones are soon forgotten


class KvBytes:
    """A stage that found some of its pages there moved less than they take: the largest of the last ones counts."""

    def __init__(self) -> None:
        self._told: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=_TOLD))

    def of(self, pool: Pool) -> float:
        """Of all ranks together."""
        told = self._told.get(pool.name)
        return max(told) if told else pool.config.hardware.kv_bytes_per_token

    def staged(self, pool: Pool, tokens: int, moved_bytes: int) -> None:
        if tokens > 0 and moved_bytes > 0:
            self._told[pool.name].append(moved_bytes / tokens)
