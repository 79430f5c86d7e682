"""Two gateways' indexes over one Redis: what one learns the other recalls, through its death, its return, and its flushing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from redis_rig import RedisServer, settings_of

from costmodel.values import Tier, WorkerKey
from kvtier.shared_index.index_store import StoreUnavailable
from kvtier.shared_index.redis_link import RedisLink, RedisSettings
from kvtier.shared_index.redis_store import RedisIndexStore
from kvtier.shared_index.shared_index import SharedIndex
from kvtier.shared_index.sharer import Sharer, SharingSettings

pytestmark = pytest.mark.slow
P0, P1 = WorkerKey("p0"), WorkerKey("p1")
CHAIN = tuple(i * 0x0123_4567_89AB_CDEF % (1 << 62) for i in range(1, 200))
OpenRedis = Callable[[RedisSettings], RedisIndexStore]


class Side:
    """One gateway's index with its sharer."""

    def __init__(self, store: RedisIndexStore, clock_ms: Callable[[], float]) -> None:
        self.index = SharedIndex(4096, 16)
        self.store = store
        self.sharer = Sharer(self.index, store, SharingSettings(), clock_ms, clock_ms)

    async def learns(self, worker: WorkerKey, blocks: tuple[int, ...]) -> None:
        self.index.assume(worker, blocks, Tier.L1, 0.0)
        await self.sharer.flush()

    async def knows(self, blocks: tuple[int, ...], *, only: WorkerKey | None = None) -> dict[WorkerKey, int]:
        await self.sharer.recall(blocks, lambda worker: only is None or worker == only)
        return self.index.leading(blocks)


@pytest.fixture
def sides(own_server: RedisServer, open_redis: OpenRedis) -> tuple[Side, Side]:
    settings = settings_of([own_server.url])
    return Side(open_redis(settings), lambda: 1000.0), Side(open_redis(settings), lambda: 3000.0)


async def test_a_second_gateway_sees_what_the_first_learned(sides: tuple[Side, Side]) -> None:
    first, second = sides
    await first.learns(P0, CHAIN[:50])
    await first.learns(P1, CHAIN[:20])
    assert await second.knows(CHAIN, only=P0) == {P0: 50}
    assert second.index.age_ms(P0, 3000.0) == 2000.0
    assert await second.knows(CHAIN) == {P0: 50, P1: 20}
    assert second.index.outbox.take().empty, "what was recalled is not told again"
    first.index.refute(P0, CHAIN[30:50])
    first.index.drop_source(P1)
    await first.sharer.flush()
    third = Side(second.store, lambda: 3000.0)
    assert await third.knows(CHAIN) == {P0: 30}


async def test_a_long_prompt_is_recalled_by_its_end(sides: tuple[Side, Side]) -> None:
    first, second = sides
    long = tuple(i * 0x0123_4567_89AB_CDEF % (1 << 62) for i in range(1, 1500))
    await first.learns(P0, long)
    assert await second.knows(long) == {P0: len(long)}


async def test_reading_and_writing_are_one_command_a_shard(own_server: RedisServer, sides: tuple[Side, Side]) -> None:
    first, second = sides
    await first.learns(P0, CHAIN)
    before = own_server.commands_run()
    await second.knows(CHAIN)
    after = own_server.commands_run()
    read = {name: after[name] - before.get(name, 0) for name in ("mget", "hgetall")}
    assert read == {"mget": 8, "hgetall": 1}
    first.index.assume(P0, CHAIN, Tier.L2, 1000.0)
    await first.sharer.flush()
    assert own_server.commands_run()["eval"] - after["eval"] == 8


async def test_a_dead_redis_is_a_miss_and_heals(own_server: RedisServer, sides: tuple[Side, Side]) -> None:
    first, second = sides
    await first.learns(P0, CHAIN[:50])
    own_server.kill()
    assert await second.knows(CHAIN) == {}
    with pytest.raises(StoreUnavailable):
        await first.learns(P1, CHAIN[:20])
    own_server.start()  # with nothing in it
    await asyncio.sleep(0.01)  # longer than a failed store is left alone here
    await flushed(first)
    assert await second.knows(CHAIN) == {P0: 50, P1: 20}
    assert first.sharer.counters.resyncs == 1


async def test_a_flushed_redis_is_told_again_without_anything_new(own_server: RedisServer, sides: tuple[Side, Side]) -> None:
    first, second = sides
    await first.learns(P0, CHAIN[:50])
    own_server.flush()
    assert await second.knows(CHAIN) == {}
    await first.sharer.flush()
    assert await second.knows(CHAIN) == {P0: 50}


async def test_a_redis_that_hangs_costs_one_deadline(own_server: RedisServer) -> None:
    settings = RedisSettings(urls=(own_server.url,), deadline_ms=30, retry_ms=60_000)
    link = RedisLink(settings, lambda: time.monotonic() * 1000)
    side = Side(RedisIndexStore(link, settings, "x", os.urandom), lambda: 0.0)
    try:
        side.index.assume(P0, CHAIN, Tier.L1, 0.0)
        own_server.stop_answering()
        assert await side.knows(CHAIN) == {P0: len(CHAIN)}, "what it knows itself it goes on knowing"
        assert side.sharer.counters.recalls_failed == 1
        with pytest.raises(StoreUnavailable, match="left alone"):
            await side.store.match(CHAIN, 0.0)
    finally:
        own_server.go_on()
        await side.sharer.close()


async def test_the_task_shares_by_itself_and_outlives_redis(own_server: RedisServer, sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.sharer._settings = SharingSettings(flush_ms=1, check_ms=20, retry_ms=5)
    running = asyncio.create_task(first.sharer.run())
    try:
        first.index.assume(P0, CHAIN[:50], Tier.L1, 0.0)
        await until_known(second, {P0: 50})
        own_server.kill()
        first.index.assume(P1, CHAIN[:9], Tier.L1, 0.0)
        own_server.start()
        third = Side(second.store, lambda: 3000.0)
        await until_known(third, {P0: 50, P1: 9})
        assert first.sharer.counters.crashes == 0
    finally:
        first.sharer.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def flushed(side: Side) -> None:
    async with asyncio.timeout(20):
        while True:
            with suppress(StoreUnavailable):
                return await side.sharer.flush()
            await asyncio.sleep(0.01)


async def until_known(side: Side, expected: dict[WorkerKey, int]) -> None:
    async with asyncio.timeout(20):
        while await side.knows(CHAIN) != expected:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
