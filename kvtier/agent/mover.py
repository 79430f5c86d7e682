"""Does what the store plans, on I/O threads, and reports back. Only the loop's thread touches the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kvtier.agent.progress import Progress
from kvtier.agent.ssd_io import Wanted, Written, move_pages, note_clears, read_pages, write_pages
from kvtier.agent.traffic import SSD, Traffic
from kvtier.page.key import digest_of, space_of
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.pool.dram_pool import DramPool
from kvtier.ssd.layout import PageToWrite, padded
from kvtier.ssd.segments import SsdSegments
from kvtier.store.actions import Clear, Demote, Demotion, Keep, Promote, Reclaim
from kvtier.store.node_store import NodeStore

log = logging.getLogger(__name__)

_READS_TOGETHER = 32


class MoverCounters(msgspec.Struct):
    ssd_read_bytes: int = 0
    ssd_written_bytes: int = 0
    mover_crashes: int = 0  # faults of our own; should stay 0


class Mover:
    """One per agent. `clock_ms` is the store's."""

    def __init__(
        self,
        store: NodeStore,
        pool: DramPool,
        segments: SsdSegments,
        threads: ThreadPoolExecutor,
        progress: Progress,
        traffic: Traffic,
        clock_ms: Callable[[], float],
    ) -> None:
        self.counters = MoverCounters()
        self._store = store
        self._pool = pool
        self._segments = segments
        self._threads = threads
        self._progress = progress
        self._traffic = traffic
        self._clock_ms = clock_ms
        self._tasks: set[asyncio.Task[None]] = set()

    def pump(self) -> None:
        """Start what the store wants done now. Call after everything that may have changed its mind."""
        actions = self._store.plan(self._clock_ms())
        reads = [action for action in actions if isinstance(action, Promote)]
        for start in range(0, len(reads), _READS_TOGETHER):
            self._start(self._promote(reads[start : start + _READS_TOGETHER]))
        for action in actions:
            if isinstance(action, Demote):
                self._start(self._demote(action.pages))
            elif isinstance(action, Reclaim):
                self._start(self._reclaim(action))
            elif isinstance(action, Clear):
                self._start(self._clear(action))

    async def drain(self, deadline_s: float) -> None:
        """Let what is under way, and what follows from it, end; at most for so long."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            log.warning("%d moves between DRAM and SSD were still under way", len(self._tasks))

    def _start(self, moving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(moving)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._progress.made()
            asyncio.get_running_loop().call_soon(self.pump)  # after those who waited: what has come must not make room

    async def _demote(self, pages: Sequence[Demotion]) -> None:
        to_write = [self._to_write(page) for page in pages]
        written = await self._in_thread(write_pages, self._segments, to_write) or [Written(Status.MISS)] * len(pages)
        for page, result in zip(pages, written, strict=True):
            if result.place is not None:
                self.counters.ssd_written_bytes += page.length
                self._store.tiering.demoted(page.generation, result.place)
            else:
                self._store.tiering.demotion_failed(page.generation, result.status)

    async def _promote(self, actions: Sequence[Promote]) -> None:
        wanted = [
            Wanted(action.place, action.length, action.checksum, self._pool.view(action.offset, padded(action.length)))
            for action in actions
        ]
        with self._traffic.timing(SSD) as came:
            statuses = await self._in_thread(read_pages, self._segments, wanted) or [Status.MISS] * len(actions)
            came(sum(action.length for action, status in zip(actions, statuses, strict=True) if status is Status.OK))
        for action, status in zip(actions, statuses, strict=True):
            if status is Status.OK:
                self.counters.ssd_read_bytes += action.length
                self._store.tiering.promoted(action.write_id)
            else:
                self._store.tiering.promotion_failed(action.write_id, status)

    async def _reclaim(self, action: Reclaim) -> None:
        moved = await self._in_thread(move_pages, self._segments, action.keep, self._space_of)
        for keep, result in zip(action.keep, moved or [Written(Status.MISS)] * len(action.keep), strict=True):
            if result.place is not None:
                self._store.tiering.kept(keep.key, action.segment, result.place)
            else:
                self._store.tiering.keep_failed(keep.key, action.segment, result.status)
        await self._in_thread(self._segments.delete, action.segment)
        self._store.tiering.reclaimed(action.segment)

    async def _clear(self, action: Clear) -> None:
        if await self._in_thread(note_clears, self._segments, action.spaces):
            self._store.tiering.cleared()
        else:
            self._store.tiering.clear_failed()

    def _to_write(self, page: Demotion) -> PageToWrite:
        space = self._store.journals.space(space_of(page.key))
        data = self._pool.view(page.offset, padded(page.length))
        return PageToWrite(space, digest_of(page.key), page.length, page.checksum, page.kind, page.depth, data)

    def _space_of(self, keep: Keep) -> PageSpace:
        return self._store.journals.space(space_of(keep.key))

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        """The result, or None where the work crashed: the pages it was about must not stay held for that."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except Exception:
            self.counters.mover_crashes += 1
            log.exception("moving pages failed")
            return None
