"""One suite for every index store: memory, one Redis server, two that share the shards, and a cluster of three."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun, Match
from kvtier.index.source_key import NodeKey, SourceKey
from kvtier.shared_index.index_store import IndexStore, MemoryIndexStore

pytestmark = pytest.mark.slow
P0, P1, A, B = WorkerKey("p0"), WorkerKey("p1", 3), NodeKey("a"), NodeKey("b", "space")
CHAIN = tuple((-1) ** i * (i * 0x0123_4567_89AB_CDEF & (1 << 62) - 1) - i for i in range(1, 40))
Open = Callable[[], IndexStore]


def put(first: int, last: int, tier: Tier) -> BlocksStored:
    return BlocksStored(CHAIN[first:last], None, tier, 16)


async def test_leading_runs_by_tier(open_store: Open) -> None:
    store = open_store()
    await store.apply(P0, put(0, 10, Tier.L1), 0.0)
    await store.apply(P0, put(8, 20, Tier.L2), 0.0)
    await store.apply(P1, put(1, 20, Tier.L1), 0.0)
    assert await store.match(CHAIN, 0.0) == {P0: Match((BlockRun(0, 10, Tier.L1), BlockRun(10, 10, Tier.L2)), 0.0)}
    assert await store.match(CHAIN[1:5], 0.0) == {
        P0: Match((BlockRun(0, 4, Tier.L1),), 0.0),
        P1: Match((BlockRun(0, 4, Tier.L1),), 0.0),
    }
    assert await store.match((), 0.0) == {}


async def test_pool_pages_beside_engine_blocks(open_store: Open) -> None:
    store = open_store()
    await store.apply(P0, put(0, 4, Tier.L1), 0.0)
    await store.apply(A, put(0, 12, Tier.L3), 0.0)
    await store.apply(B, put(0, 30, Tier.L4), 0.0)
    store.attach(P0, "a")
    store.attach(P1, "b")
    runs = {worker: match.runs for worker, match in (await store.match(CHAIN, 0.0)).items()}
    assert runs == {
        P0: (BlockRun(0, 4, Tier.L1), BlockRun(4, 8, Tier.L3, "a"), BlockRun(12, 18, Tier.L4, "b")),
        P1: (BlockRun(0, 12, Tier.L3, "a"), BlockRun(12, 18, Tier.L4, "b")),
    }


async def test_removals_clearing_and_leaving(open_store: Open) -> None:
    store = open_store()
    for tier in (Tier.L1, Tier.L2):
        await store.apply(P0, put(0, 10, tier), 0.0)
    await store.apply(P0, BlocksRemoved(CHAIN[4:10], Tier.L1), 0.0)
    assert (await store.match(CHAIN, 0.0))[P0].runs == (BlockRun(0, 4, Tier.L1), BlockRun(4, 6, Tier.L2))
    await store.apply(P0, BlocksRemoved(CHAIN[2:3], None), 0.0)
    assert (await store.match(CHAIN, 0.0))[P0].blocks == 2
    await store.apply(P0, AllCleared(), 0.0)
    assert await store.match(CHAIN, 0.0) == {}
    await store.apply(P0, put(0, 3, Tier.L2), 0.0)
    assert (await store.match(CHAIN, 0.0))[P0].runs == (BlockRun(0, 3, Tier.L2),)
    await store.drop_source(P0)
    await store.drop_source(P1)
    assert await store.match(CHAIN, 0.0) == {}


async def test_a_report_replaces_what_was_assumed(open_store: Open) -> None:
    store = open_store()
    await store.assume(P0, CHAIN[:6], Tier.L1, 0.0)
    await store.apply(P0, put(0, 3, Tier.L2), 0.0)
    assert (await store.match(CHAIN, 0.0))[P0].runs == (BlockRun(0, 3, Tier.L2), BlockRun(3, 3, Tier.L1))
    await store.refute(P0, CHAIN[:6])
    assert (await store.match(CHAIN, 0.0))[P0].runs == (BlockRun(0, 3, Tier.L2),)


async def test_a_distrusted_source_is_left_out_and_keeps_its_blocks(open_store: Open) -> None:
    store = open_store()
    await store.set_trust(P0, False)
    await store.apply(P0, put(0, 3, Tier.L1), 0.0)
    assert await store.match(CHAIN, 0.0) == {}
    await store.set_trust(P0, True)
    assert (await store.match(CHAIN, 0.0))[P0].blocks == 3
    await store.set_trust(P0, False)
    await store.clear(P0)
    await store.apply(P0, put(0, 2, Tier.L1), 0.0)
    assert await store.match(CHAIN, 0.0) == {}


async def test_age_counts_from_the_last_word(open_store: Open) -> None:
    store = open_store()
    await store.apply(P0, put(0, 3, Tier.L1), 100.0)
    await store.apply(A, put(0, 5, Tier.L3), 250.0)
    store.attach(P1, "a")
    ages = {worker: match.age_ms for worker, match in (await store.match(CHAIN, 300.0)).items()}
    assert ages == {P0: 200.0, P1: 50.0}


async def test_what_one_gateway_writes_another_reads(open_store: Open) -> None:
    first, second = open_store(), open_store()
    await first.assume(P0, CHAIN[:6], Tier.L1, 0.0)
    await second.assume(P0, CHAIN[6:9], Tier.L1, 0.0)
    for store in (first, second):
        assert (await store.match(CHAIN, 0.0))[P0].blocks == 9
    await second.clear(P0)
    assert await first.match(CHAIN, 0.0) == {}


@pytest.mark.parametrize("seed", range(6))
async def test_histories_end_as_in_memory(open_store: Open, seed: int) -> None:
    rng = Random(seed)
    store, model = open_store(), MemoryIndexStore(BlockIndex(max_entries=4096, max_sources=16))
    for each in (store, model):
        each.attach(P0, "a")
    for _ in range(40):
        source, action = rng.choice((P0, P1, A)), rng.randrange(8)
        first = rng.randrange(8)
        blocks = CHAIN[first : first + rng.randint(1, 12)]
        tier = rng.choice((Tier.L3, Tier.L4) if isinstance(source, NodeKey) else tuple(Tier))
        for each in (store, model):
            await act(each, source, action, blocks, tier)
    for first in range(8):
        assert await store.match(CHAIN[first:], 0.0) == await model.match(CHAIN[first:], 0.0)


async def act(store: IndexStore, source: SourceKey, action: int, blocks: tuple[int, ...], tier: Tier) -> None:
    if action < 4:
        await store.apply(source, BlocksRemoved(blocks, tier), 0.0)  # stored twice counts twice in memory alone
        event: BlockEvent = BlocksStored(blocks, None, tier, 16)
        await store.apply(source, event, 0.0)
    elif action == 4:
        await store.apply(source, BlocksRemoved(blocks[:3], rng_tier(tier)), 0.0)
    elif action == 5 and isinstance(source, WorkerKey):
        await store.assume(source, blocks, tier, 0.0)
    elif action == 6:
        await store.refute(source, blocks)
    elif tier is Tier.L4:
        await store.clear(source)


def rng_tier(tier: Tier) -> Tier | None:
    return None if tier is Tier.L1 else tier
