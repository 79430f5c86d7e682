"""Engine blocks and pool pages in one match: what a worker can restore from its own cache, its node, and other nodes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.values import Tier, WorkerKey
from kvtier.index.convert import to_residency
from kvtier.index.events import BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun, Match, join, through
from kvtier.index.source_key import NodeKey, SourceKey

P0, P1 = WorkerKey("p0"), WorkerKey("p1")
A, B = NodeKey("a"), NodeKey("b")
CHAIN = tuple((-1) ** i * (i << 56 | i + 1) for i in range(12))


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(max_entries=4096, max_sources=8)


def store(index: BlockIndex, source: SourceKey, blocks: Iterable[int], tier: Tier, now_ms: float = 0.0) -> None:
    index.apply(source, BlocksStored(tuple(blocks), None, tier, 16), now_ms)


def runs(index: BlockIndex, worker: WorkerKey, now_ms: float = 0.0) -> tuple[BlockRun, ...]:
    return index.match(CHAIN, now_ms)[worker].runs


def test_a_worker_goes_on_in_the_pool_where_its_own_cache_ends(index: BlockIndex) -> None:
    store(index, P0, CHAIN[:3], Tier.L1)
    store(index, A, CHAIN[:8], Tier.L3)
    store(index, A, CHAIN[6:10], Tier.L4)
    index.attach(P0, "a")
    assert runs(index, P0) == (
        BlockRun(0, 3, Tier.L1),
        BlockRun(3, 5, Tier.L3, "a"),
        BlockRun(8, 2, Tier.L4, "a"),
    )


def test_what_the_pool_holds_is_reached_by_workers_that_have_the_plug_in_alone(index: BlockIndex) -> None:
    store(index, A, CHAIN[:8], Tier.L3)
    store(index, P0, CHAIN[:2], Tier.L1)
    index.attach(P1, "b")
    assert index.match(CHAIN, 0.0) == {
        P0: Match((BlockRun(0, 2, Tier.L1),), 0.0),
        P1: Match((BlockRun(0, 8, Tier.L3, "a"),), 0.0),
    }
    index.detach(P1)
    assert P1 not in index.match(CHAIN, 0.0)


def test_what_must_be_brought_near_is_not_there_for_who_is_alone(index: BlockIndex) -> None:
    """Not even a page of its own SSD is missed, that another node has in DRAM."""
    store(index, P0, CHAIN[:2], Tier.L1)
    store(index, A, CHAIN[:4], Tier.L3)
    store(index, A, CHAIN[4:6], Tier.L4)
    store(index, B, CHAIN[:8], Tier.L3)
    index.attach(P0, "a", brought=True)
    index.attach(P1, "c", brought=True)
    away = WorkerKey("reads everywhere")
    index.attach(away, "c")
    brought, alone = index.match(CHAIN, 0.0), index.match(CHAIN, 0.0, alone=True)
    assert [(run.start, run.blocks, run.tier, run.source) for run in alone[P0].runs] == [
        (0, 2, Tier.L1, ""),
        (2, 2, Tier.L3, "a"),
        (4, 2, Tier.L4, "a"),
    ]
    assert sum(run.blocks for run in brought[P0].runs) == sum(run.blocks for run in brought[P1].runs) == 8
    assert P1 not in alone
    assert alone[away] == brought[away]


def test_dram_anywhere_before_ssd_and_home_before_away(index: BlockIndex) -> None:
    store(index, A, CHAIN[:4], Tier.L3)
    store(index, B, CHAIN[2:6], Tier.L3)
    store(index, A, CHAIN[:8], Tier.L4)
    store(index, B, CHAIN[:10], Tier.L4)
    index.attach(P0, "a")
    index.attach(P1, "b")
    assert runs(index, P0) == (
        BlockRun(0, 4, Tier.L3, "a"),
        BlockRun(4, 2, Tier.L3, "b"),
        BlockRun(6, 2, Tier.L4, "a"),
        BlockRun(8, 2, Tier.L4, "b"),
    )
    assert runs(index, P1) == (
        BlockRun(0, 2, Tier.L3, "a"),
        BlockRun(2, 4, Tier.L3, "b"),
        BlockRun(6, 4, Tier.L4, "b"),
    )


def test_a_remote_source_is_one_that_holds_long(index: BlockIndex) -> None:
    store(index, A, CHAIN[:2], Tier.L3)
    store(index, B, CHAIN[:9], Tier.L3)
    index.attach(P0, None)
    assert runs(index, P0) == (BlockRun(0, 9, Tier.L3, "b"),)


def test_a_hole_in_the_pool_is_crossed_by_who_holds_it(index: BlockIndex) -> None:
    store(index, A, CHAIN[:3], Tier.L3)
    store(index, A, CHAIN[5:7], Tier.L3)
    store(index, P0, CHAIN[:5], Tier.L2)
    index.attach(P0, "a")
    index.attach(P1, "a")
    assert runs(index, P0) == (BlockRun(0, 5, Tier.L2), BlockRun(5, 2, Tier.L3, "a"))
    assert runs(index, P1) == (BlockRun(0, 3, Tier.L3, "a"),)


def test_a_distrusted_node_or_worker_is_left_out(index: BlockIndex) -> None:
    store(index, A, CHAIN[:3], Tier.L3)
    store(index, B, CHAIN[:2], Tier.L3)
    store(index, P0, CHAIN[:1], Tier.L1)
    index.attach(P0, "a")
    index.set_trust(A, False)
    assert runs(index, P0) == (BlockRun(0, 1, Tier.L1), BlockRun(1, 1, Tier.L3, "b"))
    index.set_trust(P0, False)
    assert runs(index, P0) == (BlockRun(0, 2, Tier.L3, "b"),)
    index.clear(B)
    assert index.match(CHAIN, 0.0) == {}
    index.set_trust(A, True)
    assert runs(index, P0) == (BlockRun(0, 3, Tier.L3, "a"),)


def test_age_is_that_of_whose_word_it_is(index: BlockIndex) -> None:
    store(index, A, CHAIN[:3], Tier.L3, now_ms=10.0)
    store(index, B, CHAIN[2:3], Tier.L3, now_ms=60.0)
    store(index, P0, CHAIN[:1], Tier.L1, now_ms=40.0)
    index.attach(P0, "a")
    index.attach(P1, "c")
    ages = {worker: match.age_ms for worker, match in index.match(CHAIN, 100.0).items()}
    assert ages == {P0: 60.0, P1: 90.0}


def test_two_spaces_of_a_node_are_one_source(index: BlockIndex) -> None:
    store(index, NodeKey("a", "s1"), CHAIN[:3], Tier.L3)
    store(index, NodeKey("a", "s2"), CHAIN[2:5], Tier.L3)
    index.attach(P0, "a")
    assert runs(index, P0) == (BlockRun(0, 5, Tier.L3, "a"),)


def test_a_worker_that_has_left_reaches_nothing(index: BlockIndex) -> None:
    store(index, A, CHAIN[:3], Tier.L3)
    index.attach(P0, "a")
    index.drop_source(P0)
    assert index.match(CHAIN, 0.0) == {}


def test_leading_counts_workers_alone(index: BlockIndex) -> None:
    store(index, A, CHAIN[:3], Tier.L3)
    store(index, P0, CHAIN[:2], Tier.L1)
    assert index.leading(CHAIN) == {P0: 2}


def test_residency_names_the_source_node(index: BlockIndex) -> None:
    store(index, P0, CHAIN[:1], Tier.L1)
    store(index, A, CHAIN[:3], Tier.L3)
    index.attach(P0, "a")
    residency = to_residency(index.match(CHAIN, 0.0)[P0], 16, 1000)
    assert [(run.start, run.tokens, run.tier, run.source) for run in residency.runs] == [
        (0, 16, Tier.L1, ""),
        (16, 32, Tier.L3, "a"),
    ]


def test_a_worker_that_is_not_remote_reads_its_own_node_alone(index: BlockIndex) -> None:
    store(index, A, CHAIN[:4], Tier.L3)
    store(index, B, CHAIN[:9], Tier.L3)
    store(index, A, CHAIN[:7], Tier.L4)
    store(index, P0, CHAIN[:2], Tier.L1)
    store(index, P0, CHAIN[8:9], Tier.L1)
    index.attach(P0, "a", remote=False)
    index.attach(P1, "a", remote=False)
    index.attach(WorkerKey("p2"), None, remote=False)
    assert index.match(CHAIN, 0.0) == {
        P0: Match((BlockRun(0, 2, Tier.L1), BlockRun(2, 2, Tier.L3, "a"), BlockRun(4, 3, Tier.L4, "a")), 0.0),
        P1: Match((BlockRun(0, 4, Tier.L3, "a"), BlockRun(4, 3, Tier.L4, "a")), 0.0),
    }
    assert index.match(CHAIN[7:], 0.0) == {}


WORKERS = {P0: "a", P1: "b", WorkerKey("p2"): None, WorkerKey("p3"): "elsewhere"}
LONER = WorkerKey("loner")
NODES = (NodeKey("a"), NodeKey("b"), NodeKey("b", "other space"))
SOURCES: tuple[SourceKey, ...] = (*WORKERS, LONER, *NODES)
holdings = st.sets(
    st.tuples(st.sampled_from(SOURCES), st.integers(0, len(CHAIN) - 1), st.sampled_from(tuple(Tier))), max_size=70
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(held=holdings, gone=holdings, distrusted=st.sets(st.sampled_from(SOURCES), max_size=2), asked=st.integers(0, len(CHAIN)))
def test_match_equals_the_obvious(
    held: set[tuple[SourceKey, int, Tier]], gone: set[tuple[SourceKey, int, Tier]], distrusted: set[SourceKey], asked: int
) -> None:
    held = {(source, block, tier) for source, block, tier in held if isinstance(source, WorkerKey) or tier >= Tier.L3}
    index = BlockIndex(max_entries=4096, max_sources=16)
    for worker, home in WORKERS.items():
        index.attach(worker, home)
    for source, block, tier in sorted(held):
        store(index, source, CHAIN[block : block + 1], tier)
    for source, block, tier in gone:
        index.apply(source, BlocksRemoved(CHAIN[block : block + 1], tier), 0.0)
    for source in distrusted:
        index.set_trust(source, False)
    held = {entry for entry in held - gone if entry[0] not in distrusted}
    matches = index.match(CHAIN[:asked], 0.0)
    for worker in (*WORKERS, LONER):
        expected = [nearest(held, worker, block) for block in range(asked)]
        leading = expected[: expected.index(None)] if None in expected else expected
        found = [] if worker not in matches else spread(matches[worker].runs)
        assert [tier for tier, _ in found] == [place[0] for place in leading if place]
        assert all(source in place[1] for (_, source), place in zip(found, leading, strict=True) if place)


def nearest(held: set[tuple[SourceKey, int, Tier]], worker: WorkerKey, block: int) -> tuple[Tier, set[str]] | None:
    """The best place of one block for one worker: its tier, and the sources that are as good as each other."""
    for tier in Tier:
        if (worker, block, tier) in held:
            return tier, {""}
    for tier in (Tier.L3, Tier.L4) if worker in WORKERS else ():
        nodes = {node.node for node in NODES if (node, block, tier) in held}
        if nodes:
            home = WORKERS[worker]
            return tier, {home} if home in nodes else nodes
    return None


def spread(found: tuple[BlockRun, ...]) -> list[tuple[Tier, str]]:
    places: list[tuple[Tier, str]] = []
    for run in found:
        assert run.start == len(places)
        places += [(run.tier, run.source)] * run.blocks
    return places


def run_of(start: int, blocks: int, source: str = "") -> BlockRun:
    return BlockRun(start, blocks, Tier.L3, source)


def test_a_nearer_layer_goes_first() -> None:
    near, far = [run_of(2, 2, "n"), run_of(6, 1, "n")], [run_of(0, 3, "f"), run_of(5, 4, "f")]
    assert through([near, far], 0, 20) == [
        run_of(0, 2, "f"), run_of(2, 2, "n"), run_of(5, 1, "f"), run_of(6, 1, "n"), run_of(7, 2, "f"),
    ]  # fmt: skip
    assert through([near, far], 1, 3) == [run_of(1, 1, "f"), run_of(2, 1, "n")]
    assert through([(), ()], 0, 5) == []


def test_runs_that_touch_are_joined() -> None:
    assert list(join([run_of(0, 2), run_of(8, 2)], run_of(2, 3))) == [run_of(0, 5), run_of(8, 2)]
    assert list(join([run_of(0, 2), run_of(4, 2)], run_of(1, 4))) == [run_of(0, 6)]
