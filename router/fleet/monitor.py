"""Watches every worker: discovery until it answers, then loads, health and KV events. One task per worker, one owner.

Whatever fails here costs routing quality, never a request: a worker is taken out only when it no longer answers at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

import httpx
import structlog

from costmodel.values import Tier
from engine_adapters.base import AdapterError, EngineInfo, EventFeed, LoadReport
from engine_adapters.sglang.subscriber import FeedStatus, Subscriber
from router.clock import Clock
from router.config.tree import Config
from router.fleet.pool import Pool
from router.fleet.worker import Worker, WorkerState

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_MISSES_BEFORE_DOWN = 3
_DOUBT_S = 0.3
_TELL_AGAIN_MS = 30_000.0
_TIDY_S = 1.0
_TIDY_ENTRIES = 5000


class Monitor:
    """`watch` a worker to start, `forget` it to stop; `close` ends every task."""

    def __init__(self, config: Config, http: httpx.AsyncClient, clock: Clock) -> None:
        self._polls = config.polls
        self._kv_events = config.index.kv_events
        self._http = http
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._subscribers: dict[str, list[Subscriber]] = {}
        self.crashes = 0

    def watch(self, pool: Pool, worker: Worker) -> None:
        task = asyncio.create_task(self._guard(pool, worker), name=f"monitor {worker.worker_id}")
        self._tasks[worker.worker_id] = task

    def tidy(self, pools: Iterable[Pool]) -> None:
        """Free, a little at a time, what dropped sources have left behind in the indexes."""
        self._tidying = asyncio.create_task(self._tidy(list(pools)), name="monitor tidy")

    async def _tidy(self, pools: Sequence[Pool]) -> None:
        while True:
            await asyncio.sleep(_TIDY_S)
            for pool in pools:
                pool.blocks.sweep(_TIDY_ENTRIES)
                pool.lineage.sweep(_TIDY_ENTRIES)

    async def forget(self, worker_id: str) -> None:
        task = self._tasks.pop(worker_id, None)
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for worker_id in list(self._tasks):
            await self.forget(worker_id)
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)

    def feeds(self, worker_id: str) -> list[FeedStatus]:
        return [subscriber.status for subscriber in self._subscribers.get(worker_id, [])]

    async def _guard(self, pool: Pool, worker: Worker) -> None:
        while True:
            try:
                await self._life(pool, worker)
            except Exception:  # noqa: BLE001  the task root: a fault here must not end the watching
                self.crashes += 1
                _log.exception("monitor_crashed", worker=worker.worker_id)
                await asyncio.sleep(self._polls.discover_s)

    async def _life(self, pool: Pool, worker: Worker) -> None:
        """Discover, watch until it is down or restarted, start again."""
        info = await self._discover(worker)
        for dropped in worker.discovered(info):
            pool.forget(dropped)
        pool.name_models()
        _log.info("worker_ready", worker=worker.worker_id, engine=info.engine, role=info.role, page_size=info.page_size)
        async with asyncio.TaskGroup() as group:
            feeds = [group.create_task(self._follow(pool, worker, feed)) for feed in self._feeds_of(worker, info)]
            loads = group.create_task(self._read_loads(pool, worker))
            await self._until_down(worker)
            for task in (loads, *feeds):
                task.cancel()
        for key in worker.keys:
            pool.forget(key)
        _log.warning("worker_down", worker=worker.worker_id, fault=worker.last_fault)

    async def _discover(self, worker: Worker) -> EngineInfo:
        told_ms = float("-inf")
        while True:
            try:
                return await self._bounded(worker.adapter.discover(self._http, worker.endpoint))
            except AdapterError as error:
                worker.last_fault = str(error)
            if self._clock() - told_ms >= _TELL_AGAIN_MS:
                told_ms = self._clock()
                again_s = self._polls.discover_s
                _log.warning(
                    "worker_unreachable", worker=worker.worker_id, fault=worker.last_fault, tried_again_every_s=again_s
                )
            await asyncio.sleep(self._polls.discover_s)

    async def _until_down(self, worker: Worker) -> None:
        """Three misses in a row, looked for every `health_s`, and at once when a turn or a poll found nobody there."""
        misses = 0
        while misses < _MISSES_BEFORE_DOWN:
            await self._pause(worker, _DOUBT_S if misses else self._polls.health_s)
            misses = 0 if await self._answers(worker) else misses + 1
        if worker.state is WorkerState.READY:
            worker.state = WorkerState.DOWN

    async def _pause(self, worker: Worker, seconds: float) -> None:
        worker.doubted.clear()
        try:
            async with asyncio.timeout(seconds):
                await worker.doubted.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_DOUBT_S)

    async def _answers(self, worker: Worker) -> bool:
        try:
            return await self._bounded(worker.adapter.healthy(self._http, worker.endpoint))
        except AdapterError as error:
            worker.last_fault = str(error)
            return False

    async def _read_loads(self, pool: Pool, worker: Worker) -> None:
        while True:
            try:
                reports = await self._bounded(worker.adapter.read_loads(self._http, worker.endpoint))
            except AdapterError as error:
                worker.last_fault = str(error)
                worker.doubted.set()
            else:
                self._take_loads(pool, worker, reports)
            await asyncio.sleep(self._polls.loads_ms / 1000)

    def _take_loads(self, pool: Pool, worker: Worker, reports: Sequence[LoadReport]) -> None:
        """An engine that came back between two reports holds nothing any more; its KV events tell that by themselves."""
        now_ms = self._clock()
        for report in reports:
            if worker.restarted(report):
                _log.warning("worker_restarted", worker=worker.worker_id, rank=report.dp_rank)
                pool.lineage.drop_source(worker.keys[report.dp_rank])
            worker.reported(report, now_ms)
        for key, ledger in worker.ranked:
            for tier, tell in ((Tier.L1, ledger.turned_over), (Tier.L2, ledger.host_turned_over)):
                churn = pool.blocks.churn(key, tier)
                if churn is not None:
                    tell(churn.stored * worker.page_size, churn.removed * worker.page_size, now_ms)

    async def _follow(self, pool: Pool, worker: Worker, feed: EventFeed) -> None:
        key = worker.keys[min(feed.dp_rank, len(worker.keys) - 1)]
        subscriber = Subscriber(feed, key, pool.blocks, worker.adapter.decode_events, self._clock)
        followers = self._subscribers.setdefault(worker.worker_id, [])
        followers.append(subscriber)
        try:
            await subscriber.run()
        finally:
            followers.remove(subscriber)

    def _feeds_of(self, worker: Worker, info: EngineInfo) -> tuple[EventFeed, ...]:
        """What the engine told, or for engines that do not tell (vLLM) what the configuration says, one port a rank."""
        if not self._kv_events:
            return ()
        events, replay = worker.config.kv_events, worker.config.kv_replay
        if events is None:
            return info.event_feeds
        ranks = range(info.dp_size)
        return tuple(EventFeed(rank, _shifted(events, rank), _shifted(replay, rank) if replay else None) for rank in ranks)

    async def _bounded(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._polls.control_timeout_s):
                return await call
        except TimeoutError:
            raise AdapterError(f"no answer within {self._polls.control_timeout_s:g} s") from None


def _shifted(address: str, rank: int) -> str:
    """The address of rank `rank`'s socket: its port is the first rank's plus `rank`."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"
