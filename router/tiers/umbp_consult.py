"""Asks another UMBP master what engines hold of a turn's prompt, before the turn is placed.

For fleets whose engines already report to a master of their own. Workers whose KV events are followed here are not asked about:
those tell sooner, and of evictions. A master that does not answer costs nothing but what it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from costmodel.values import WorkerKey
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun
from kvtier.index.sources import SourceLimit
from kvtier.umbp.reader import MasterUnavailable, UmbpReader
from router.clock import Clock
from router.config.tree import UmbpMasterConfig
from router.fleet.pool import Pool
from router.turn.turn import Turn

_MOST_BLOCKS = 4096  # of one prompt, its first ones: an answer holds a string for every block, node and tier


class ConsultCounters(msgspec.Struct):
    found: int = 0  # the master knew of some worker here that holds a part of the prompt
    nothing: int = 0
    failed: int = 0


class UmbpConsult:
    """Of one pool. `close` must be awaited."""

    def __init__(self, config: UmbpMasterConfig, pool: Pool, clock: Clock) -> None:
        self.counters = ConsultCounters()
        self._config = config
        self._pool = pool
        self._clock = clock
        self._reader = UmbpReader(config.address, config.deadline_ms / 1000)
        self._silent_until_ms = 0.0

    async def recall(self, turn: Turn) -> None:
        """Once the prompt's blocks are known; never raises for the master's sake, and waits no longer than its deadline."""
        if turn.pool is not self._pool or self._clock() < self._silent_until_ms:
            return
        asked = turn.sighting.blocks[:_MOST_BLOCKS]
        workers = [
            key for worker in self._pool.workers.values() for key in worker.keys if not self._pool.blocks.speaks_for(key)
        ]
        if not len(asked) or not workers:
            return
        try:
            told = await self._reader.leading([str(block) for block in asked], count_as_hit=self._config.count_hits)
        except MasterUnavailable:
            self.counters.failed += 1
            self._silent_until_ms = self._clock() + self._config.retry_ms
            return
        held = {key: told.get(self._config.nodes.get(key.worker_id, key.worker_id), ()) for key in workers}
        believe(self._pool.blocks, asked, held, self._clock())
        if any(held.values()):
            self.counters.found += 1
        else:
            self.counters.nothing += 1

    async def close(self) -> None:
        await self._reader.close()


def believe(index: BlockIndex, hashes: Sequence[int], held: Mapping[WorkerKey, Sequence[BlockRun]], now_ms: float) -> None:
    """Put what each worker holds of this prompt in place of what was believed of it before."""
    for worker, runs in held.items():
        index.refute(worker, hashes)
        try:
            for run in runs:
                index.assume(worker, hashes[run.start : run.start + run.blocks], run.tier, now_ms)
        except SourceLimit:  # more ranks than `index.max_workers`: this one goes without
            return
