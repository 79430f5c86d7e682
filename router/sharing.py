"""Shares every pool's lineage with other gateways, where a Redis is configured; without one there is nothing here to do."""

from __future__ import annotations

import asyncio
import os
import time

from kvtier.shared_index.redis_link import RedisLink
from kvtier.shared_index.redis_store import RedisIndexStore
from kvtier.shared_index.shared_index import SharedIndex
from kvtier.shared_index.sharer import Sharer, SharingSettings
from router.clock import Clock
from router.config.tree import RedisConfig
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.turn.turn import Turn


class Sharing:
    """One sharer a pool. `close` must be awaited."""

    def __init__(self, config: RedisConfig | None, fleet: Fleet, clock: Clock) -> None:
        self._clock = clock
        self.sharers: dict[str, Sharer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        if config is not None:
            self.sharers = {pool.name: self._sharer(config, pool) for pool in fleet.pools.values()}

    @property
    def on(self) -> bool:
        return bool(self.sharers)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(sharer.run(), name=f"share {name}") for name, sharer in self.sharers.items()]

    async def recall(self, turn: Turn) -> None:
        """What other gateways know of this turn's prompt, about the workers of its pool."""
        workers = turn.pool.workers
        await self.sharers[turn.pool.name].recall(turn.sighting.digests, lambda key: key.worker_id in workers)

    async def close(self) -> None:
        for sharer in self.sharers.values():
            sharer.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sharer in self.sharers.values():
            await sharer.close()

    def _sharer(self, config: RedisConfig, pool: Pool) -> Sharer:
        assert isinstance(pool.lineage, SharedIndex), "a pool's lineage is shared where a Redis is configured"
        settings = config.as_settings()
        store = RedisIndexStore(RedisLink(settings, self._clock), settings, f"lineage:{pool.name}", os.urandom)
        return Sharer(pool.lineage, store, SharingSettings(retry_ms=config.retry_ms), self._clock, _wall_ms)


def _wall_ms() -> float:
    return time.time() * 1000
