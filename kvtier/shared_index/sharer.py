"""Keeps one shared index and its store together: what was learned here goes out in batches, what a prompt needs comes in.

Nothing here is waited for but `recall`, and that no longer than its deadline. A store that does not answer costs nothing but
what the other gateways know. One that lost its content is told again all that this gateway knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from costmodel.values import Tier, WorkerKey
from kvtier.index.source_key import SourceKey
from kvtier.shared_index.holdings import Change
from kvtier.shared_index.index_store import StoreUnavailable
from kvtier.shared_index.outbox import Outbox
from kvtier.shared_index.redis_store import Lost, RedisIndexStore
from kvtier.shared_index.shared_index import SharedIndex

log = logging.getLogger(__name__)

MAX_RECALLED = 1024  # positions of one prompt, its last ones


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True):
    flush_ms: float = 20.0  # what is learned within it goes out together
    check_ms: float = 5000.0  # between two looks at whether the store still has what it was told
    retry_ms: float = 1000.0


class SharingCounters(msgspec.Struct):
    recalls: int = 0
    recalled: int = 0  # recalls that brought something new
    recalls_failed: int = 0
    flushes: int = 0
    flushes_failed: int = 0
    resyncs: int = 0
    crashes: int = 0  # faults of our own; should stay 0


class Sharer:
    """`run` is its task. `clock_ms` is the gateway's own, `wall_ms` one that all gateways share."""

    def __init__(
        self,
        index: SharedIndex,
        store: RedisIndexStore,
        settings: SharingSettings,
        clock_ms: Callable[[], float],
        wall_ms: Callable[[], float],
    ) -> None:
        self.counters = SharingCounters()
        self._index = index
        self._store = store
        self._settings = settings
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._news = asyncio.Event()
        self._stopped = False
        self._lost = Lost(set(), set())
        index.on_change = self._news.set

    @property
    def outbox(self) -> Outbox:
        """What waits to be told."""
        return self._index.outbox

    async def recall(self, hashes: Sequence[int], known: Callable[[WorkerKey], bool]) -> None:
        """Take over what others know of this prompt, about workers that are `known` here. Never raises for a store's sake."""
        self.counters.recalls += 1
        first = max(0, len(hashes) - MAX_RECALLED)
        asked = hashes[first:]
        try:
            matches = await self._store.match(asked, self._wall_ms())
        except StoreUnavailable:
            self.counters.recalls_failed += 1
            return
        held = self._index.leading(hashes)
        news = {
            worker: match for worker, match in matches.items() if known(worker) and first + match.blocks > held.get(worker, 0)
        }
        self.counters.recalled += bool(news)
        for worker, match in news.items():
            heard_ms = self._clock_ms() - match.age_ms
            self._index.learn(worker, hashes[: first + match.blocks], Tier.L1, heard_ms)

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopped:
            try:
                await self._wait()
                await self.flush()
            except StoreUnavailable as error:
                self.counters.flushes_failed += 1
                log.debug("nothing shared: %s", error)
                await self._rest()
            except Exception:
                self.counters.crashes += 1
                log.exception("sharing failed")
                await self._rest()

    def stop(self) -> None:
        """To be followed by cancelling the task: a cancellation alone may be lost inside a Redis command that just ends."""
        self._stopped = True
        self._news.set()

    async def flush(self) -> None:
        """Tell the store what is new. Raises `StoreUnavailable`, after which it is told later."""
        self._news.clear()
        parcel = self._index.outbox.take()
        try:
            for source in parcel.cleared:
                await self._store.clear(source)
            await self._store.write(parcel.changes, self._wall_ms(), every_shard=parcel.empty)
            for source in parcel.dropped:
                await self._store.drop_source(source)
        except BaseException:
            self._index.outbox.give_back(parcel)
            raise
        self.counters.flushes += 1
        self._find_lost()
        if any(self._lost):
            await self._resync()

    async def close(self) -> None:
        await self._store.close()

    async def _rest(self) -> None:
        await asyncio.sleep(self._settings.retry_ms / 1000)
        self._news.set()  # for what was given back

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._settings.check_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._settings.flush_ms / 1000)

    def _find_lost(self) -> None:
        lost = self._store.take_lost()
        self._lost.shards.update(lost.shards)
        self._lost.sources.update(lost.sources)

    async def _resync(self) -> None:
        await self._store.write({}, None, every_shard=True)  # where one shard has lost, others may have
        self._find_lost()
        lost = self._lost
        log.warning("the shared index has lost %d shards and %d sources; telling it again", len(lost.shards), len(lost.sources))
        for source in self._index.sources:
            for part in self._index.holdings(source):
                changes = dict(self._told_again(source, part, lost))
                if changes:
                    await self._store.write({source: changes}, None)
                await asyncio.sleep(0)
        self.counters.resyncs += 1
        self._lost = Lost(set(), set())

    def _told_again(self, source: SourceKey, part: Iterable[tuple[int, int]], lost: Lost) -> Iterable[tuple[int, Change]]:
        for block, planes in part:
            if source in lost.sources or self._store.keys.shard(block) in lost.shards:
                yield block, Change(0xFF, planes)  # others may have told it already
