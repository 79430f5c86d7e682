"""Brings a prompt's pages into this node's DRAM before an engine asks for them: from its own SSD, else from peers.

A stage has a deadline and may have a byte budget; leading pages come first, because an engine restores a leading run. What has
come is held in DRAM until a while after the stage's end, all stages together up to a share of it; what cannot be held is not
brought. Stages run side by side up to a limit, the rest wait in order; ended ones are remembered, to be asked about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import inf

import msgspec

from kvtier.agent.fetcher import Fetched, Fetcher
from kvtier.agent.progress import Progress
from kvtier.page.key import PageKey, PageKeys, digest_of
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.settings.ranges import Count, PauseMs, Share
from kvtier.store.gathering import Gathering
from kvtier.store.node_store import NodeStore
from kvtier.wire.messages import Peer

log = logging.getLogger(__name__)

_FETCH_PAGES = 128
_REMEMBERED_MS = 60_000.0
_REMEMBERED = 1024  # ended stages: each knows its keys


class StageState(StrEnum):
    QUEUED = "queued"
    FETCHING = "fetching"
    READY = "ready"  # everything is in DRAM
    PARTIAL = "partial"  # what could be had is; the rest is nowhere
    FULL = "full"  # what there was room for is, or what was allowed
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"  # by a fault of this node


class StageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_running: Count = 4
    max_queued: Count = 256
    max_ms: PauseMs = 60_000  # the longest deadline that is granted, and the longest hold behind it
    max_held_share: Share = 0.3  # of DRAM, by all stages together


class StageCounters(msgspec.Struct):
    stage_crashes: int = 0  # faults of our own; should stay 0


class StagesFull(Exception):
    """More stages wait than may. The message says how many."""


class StageJob(msgspec.Struct):
    id: int
    space: PageSpace
    keys: PageKeys
    sources: list[Peer]
    deadline_ms: float
    max_bytes: int
    state: StageState = StageState.QUEUED
    hold_ms: float = 0.0
    fetched_bytes: int = 0
    gathering: Gathering = msgspec.field(default_factory=Gathering)
    hold_until_ms: float = inf  # known when it has ended

    @property
    def ended(self) -> bool:
        return self.state not in (StageState.QUEUED, StageState.FETCHING)


class Stager:
    """All stages of a node. `pump` starts what the store plans; `clock_ms` is the store's."""

    def __init__(
        self,
        store: NodeStore,
        fetcher: Fetcher,
        progress: Progress,
        pump: Callable[[], None],
        settings: StageSettings,
        clock_ms: Callable[[], float],
    ) -> None:
        self.counters = StageCounters()
        self._store = store
        self._fetcher = fetcher
        self._progress = progress
        self._pump = pump
        self._settings = settings
        self._clock_ms = clock_ms
        self._running = asyncio.Semaphore(settings.max_running)
        self._jobs: dict[int, StageJob] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._next = 1

    def stage(
        self, space: PageSpace, digests: bytes, sources: list[Peer], deadline_ms: float, max_bytes: int, hold_ms: float
    ) -> StageJob:
        """Begin a stage that ends after `deadline_ms` from now at the latest. Raises `StagesFull`."""
        if len(self._tasks) >= self._settings.max_running + self._settings.max_queued:
            raise StagesFull(f"{len(self._tasks)} stages are under way or waiting: ask again later")
        keys = PageKeys(self._store.meet(space), digests)
        until_ms = self._clock_ms() + min(deadline_ms, self._settings.max_ms)
        job = StageJob(self._next, space, keys, sources, until_ms, max_bytes, hold_ms=min(hold_ms, self._settings.max_ms))
        self._next += 1
        self._jobs[job.id] = job
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._ended(job))
        return job

    def get(self, stage: int) -> StageJob | None:
        return self._jobs.get(stage)

    @property
    def max_bytes(self) -> int:
        """What all stages together may hold."""
        return int(self._settings.max_held_share * self._store.settings.bytes)

    def leading(self, job: StageJob) -> int:
        """Pages of the stage that are in DRAM, from the first on."""
        return self._store.resident(job.keys)

    def cancel(self, stage: int) -> None:
        """Bring nothing more, hold nothing more; what has come may stay."""
        job, task = self._jobs.get(stage), self._tasks.get(stage)
        if job is None:
            return
        if task is not None and not job.ended:
            job.state = StageState.CANCELLED
            task.cancel()
        self._store.let_go(job.gathering)

    def cancel_space(self, space: PageSpace) -> None:
        """The same for every stage of a space, which is being cleared: others may still have what is forgotten here."""
        for job in self._jobs.values():
            if job.space == space:
                self.cancel(job.id)

    def sweep(self) -> None:
        """Let go of what was held long enough, and forget what ended long ago."""
        now_ms = self._clock_ms()
        for job in self._jobs.values():
            if job.gathering.held and job.hold_until_ms <= now_ms:
                self._store.let_go(job.gathering)
        limit_ms = now_ms - _REMEMBERED_MS - self._settings.max_ms
        let_go = [job for job in self._jobs.values() if job.ended and not job.gathering.held]
        spare = len(let_go) - _REMEMBERED
        for number, job in enumerate(let_go):
            if number < spare or job.deadline_ms <= limit_ms:
                del self._jobs[job.id]

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in self._jobs.values():
            self._store.let_go(job.gathering)

    def _ended(self, job: StageJob) -> None:
        self._tasks.pop(job.id, None)
        job.hold_until_ms = self._clock_ms() + job.hold_ms
        if not job.hold_ms or job.state is StageState.CANCELLED:
            self._store.let_go(job.gathering)

    async def _run(self, job: StageJob) -> None:
        try:
            async with asyncio.timeout(self._left_s(job)), self._running:
                job.state = StageState.FETCHING
                await self._bring(job)
            job.state = self._outcome(job)
        except TimeoutError:
            job.state = StageState.EXPIRED
        except Exception:
            self.counters.stage_crashes += 1
            job.state = StageState.FAILED
            log.exception("a stage failed")

    def _outcome(self, job: StageJob) -> StageState:
        if self.leading(job) == len(job.keys):
            return StageState.READY
        return StageState.FULL if job.gathering.full else StageState.PARTIAL

    async def _bring(self, job: StageJob) -> None:
        """From each source in turn, and again behind others who were writing the same pages, and may have given up."""
        while True:
            met_others = await self._bring_once(job)
            await self._until_nothing_comes(job)
            if not met_others or job.gathering.full or not self._missing(job):
                return

    async def _bring_once(self, job: StageJob) -> bool:
        """Whether others were in the way."""
        met_others = False
        self._gather(job)
        self._pump()
        for source in job.sources:
            missing = self._missing(job)
            for start in range(0, len(missing), _FETCH_PAGES):
                fetched = await self._fetch(job, missing[start : start + _FETCH_PAGES], source)
                met_others = met_others or fetched.met_others
                if fetched.statuses[-1] is not Status.OK:
                    break  # a gap: what this source has behind it is not restored without it
                self._gather(job)
        return met_others

    async def _until_nothing_comes(self, job: StageJob) -> None:
        while self._gather(job):
            self._pump()
            if self._store.tiering.starved:
                job.gathering.full = True
                return
            await self._progress.wait(self._left_s(job))

    def _missing(self, job: StageJob) -> list[PageKey]:
        return [key for key in job.keys if self._store.catalog.get(key) is None]

    def _gather(self, job: StageJob) -> bool:
        """Hold what is there; whether more is on its way."""
        return self._store.gather(job.keys, job.gathering, self._room_bytes())

    def _room_bytes(self) -> int:
        return self.max_bytes - sum(each.gathering.claimed_bytes for each in self._jobs.values())

    async def _fetch(self, job: StageJob, keys: Sequence[PageKey], source: Peer) -> Fetched:
        digests = b"".join(map(digest_of, keys))
        room_bytes = self._room_bytes()
        allowed_bytes = job.max_bytes - job.fetched_bytes if job.max_bytes else room_bytes
        if room_bytes <= 0 or job.gathering.full:
            job.gathering.full = True
            return Fetched([Status.BUSY] * len(keys))
        budget_bytes = min(room_bytes, allowed_bytes)
        fetched = await self._fetcher.fetch(job.space, digests, source, job.deadline_ms, budget_bytes)
        job.gathering.full = job.gathering.full or fetched.over_budget
        job.fetched_bytes += fetched.fetched_bytes
        self._progress.made()
        self._pump()
        return fetched

    def _left_s(self, job: StageJob) -> float:
        return max(0.0, job.deadline_ms - self._clock_ms()) / 1000
