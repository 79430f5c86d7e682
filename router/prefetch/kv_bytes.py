"""What a token's KV takes in bytes, by pool: as configured until agents have moved some."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial

import structlog

from router.fleet.pool import Pool

_log = structlog.get_logger(__name__)
_TOLD = 8  # stages; of an engine that came back with another KV type the old ones are soon forgotten
_MOST_BYTES = 1 << 26  # of a token; GPT-3's, the largest there was, took 4.7 MB


class KvBytes:
    """Told of stages that found none of their leading pages there. One that found others moved less than they take: the largest
    of the last ones counts. `refused` counts stages of which agents told what cannot be."""

    def __init__(self) -> None:
        self._told: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=_TOLD))
        self.refused = 0

    def of(self, pool: Pool) -> float:
        """Of all ranks together."""
        told = self._told.get(pool.name)
        return max(told) if told else pool.config.hardware.kv_bytes_per_token

    def known(self, pool: Pool) -> bool:
        """Whether agents or the configuration have told it; else `of` is a default, which may be another model's."""
        return pool.name in self._told or "kv_bytes_per_token" in pool.config.hardware.model_fields_set

    def possible(self, node: str, tokens: int, moved_bytes: int) -> bool:
        """Whether so many bytes can have come for so many tokens. What its agent tells else is counted, and logged once."""
        if 0 <= moved_bytes <= tokens * _MOST_BYTES:
            return True
        if not self.refused:
            _log.warning("prefetch_size_refused", node=node, moved_bytes=moved_bytes, tokens=tokens)
        self.refused += 1
        return False

    def staged(self, pool: Pool, tokens: int, moved_bytes: int) -> None:
        if tokens > 0 and moved_bytes > 0:
            self._told[pool.name].append(moved_bytes / tokens)
