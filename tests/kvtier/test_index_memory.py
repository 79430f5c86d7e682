"""BlockIndex: matching, counting, assumptions, emptying, bounds."""

from __future__ import annotations

import pytest

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import AllCleared, BlocksRemoved, BlocksStored
from kvtier.index.memory import SHARDS, BlockIndex
from kvtier.index.sources import SourceLimit

A = WorkerKey("a")
B = WorkerKey("b", 3)
CHAIN = tuple(range(100, 110))


def stored(hashes: tuple[int, ...], tier: Tier = Tier.L1) -> BlocksStored:
    return BlocksStored(hashes, None, tier, 16)


def runs(index: BlockIndex, source: WorkerKey, hashes: tuple[int, ...] = CHAIN) -> list[tuple[int, int, int]]:
    match = index.match(hashes, 0.0).get(source)
    return [] if match is None else [(run.start, run.blocks, run.tier) for run in match.runs]


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(max_entries=4096, max_sources=8)


def test_leading_runs_of_every_source(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN[:4]), 0.0)
    index.apply(A, stored(CHAIN[2:7], Tier.L2), 0.0)
    index.apply(A, stored(CHAIN[8:]), 0.0)  # behind a hole: not part of the prefix
    index.apply(B, stored(CHAIN, Tier.L3), 0.0)
    assert runs(index, A) == [(0, 4, Tier.L1), (4, 3, Tier.L2)]
    assert runs(index, B) == [(0, 10, Tier.L3)]
    assert index.match(CHAIN, 0.0)[A].blocks == 7


def test_the_nearest_tier_wins_and_counts_once(index: BlockIndex) -> None:
    for tier in (Tier.L3, Tier.L2, Tier.L1):
        index.apply(A, stored(CHAIN, tier), 0.0)
    assert runs(index, A) == [(0, 10, Tier.L1)]
    index.apply(A, BlocksRemoved(CHAIN[3:5], Tier.L1), 0.0)
    assert runs(index, A) == [(0, 3, Tier.L1), (3, 2, Tier.L2), (5, 5, Tier.L1)]


def test_the_first_block_decides_who_is_matched(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN[1:]), 0.0)
    assert index.match(CHAIN, 0.0) == {}
    assert index.match((), 0.0) == {}


def test_matching_twice_gives_the_same(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN[:5]), 0.0)
    index.apply(B, stored(CHAIN, Tier.L2), 0.0)
    assert index.match(CHAIN, 0.0) == index.match(CHAIN, 0.0)


def test_write_back_order_converges(index: BlockIndex) -> None:
    """Write-through publishes the host store before the device remove, write-back the other way round."""
    index.apply(A, stored(CHAIN), 0.0)
    index.apply(A, stored(CHAIN, Tier.L2), 0.0)
    index.apply(A, BlocksRemoved(CHAIN, Tier.L1), 0.0)
    index.apply(B, stored(CHAIN), 0.0)
    index.apply(B, BlocksRemoved(CHAIN, Tier.L1), 0.0)
    index.apply(B, stored(CHAIN, Tier.L2), 0.0)
    assert runs(index, A) == runs(index, B) == [(0, 10, Tier.L2)]


def test_a_block_stored_twice_is_removed_twice(index: BlockIndex) -> None:
    for _ in range(3):
        index.apply(A, stored(CHAIN[:1]), 0.0)
    for _ in range(2):
        index.apply(A, BlocksRemoved(CHAIN[:1], Tier.L1), 0.0)
        assert runs(index, A) == [(0, 1, Tier.L1)]
    index.apply(A, BlocksRemoved(CHAIN[:1], Tier.L1), 0.0)
    assert index.match(CHAIN, 0.0) == {}
    assert index.entries == 0


def test_counts_do_not_outlive_a_clear(index: BlockIndex) -> None:
    for event in (stored(CHAIN), stored(CHAIN), AllCleared(), stored(CHAIN), BlocksRemoved(CHAIN, Tier.L1)):
        index.apply(A, event, 0.0)
    assert index.match(CHAIN, 0.0) == {}


def test_removal_without_a_tier_removes_from_all(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN), 0.0)
    index.apply(A, stored(CHAIN, Tier.L2), 0.0)
    index.apply(A, BlocksRemoved(CHAIN[5:], None), 0.0)
    assert runs(index, A) == [(0, 5, Tier.L1)]


def test_removal_of_the_unknown_is_nothing(index: BlockIndex) -> None:
    index.apply(A, BlocksRemoved(CHAIN, None), 0.0)
    index.apply(A, stored(CHAIN[:2]), 0.0)
    index.apply(A, BlocksRemoved(CHAIN[4:], Tier.L1), 0.0)
    assert runs(index, A) == [(0, 2, Tier.L1)]


def test_an_assumption_is_matched_until_refuted(index: BlockIndex) -> None:
    index.assume(A, CHAIN, Tier.L1, 5.0)
    assert runs(index, A) == [(0, 10, Tier.L1)]
    index.refute(A, CHAIN[6:])
    assert runs(index, A) == [(0, 6, Tier.L1)]


def test_a_report_replaces_the_assumption_and_counts_once(index: BlockIndex) -> None:
    index.assume(A, CHAIN, Tier.L1, 0.0)
    index.apply(A, stored(CHAIN), 0.0)
    index.refute(A, CHAIN)
    assert runs(index, A) == [(0, 10, Tier.L1)], "what the engine reported stays"
    index.apply(A, BlocksRemoved(CHAIN, Tier.L1), 0.0)
    assert index.match(CHAIN, 0.0) == {}, "one report, one removal"


def test_a_removal_ends_the_assumption_too(index: BlockIndex) -> None:
    index.assume(A, CHAIN, Tier.L2, 0.0)
    index.apply(A, BlocksRemoved(CHAIN, Tier.L2), 0.0)
    assert index.match(CHAIN, 0.0) == {}


def test_age_is_since_the_source_last_spoke(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN), 100.0)
    index.apply(B, stored(CHAIN), 100.0)
    index.apply(A, stored((7,)), 250.0)
    matches = index.match(CHAIN, 300.0)
    assert (matches[A].age_ms, matches[B].age_ms) == (50.0, 200.0)


def test_a_distrusted_source_is_not_matched_but_kept_up(index: BlockIndex) -> None:
    index.set_trust(A, False)
    index.apply(A, stored(CHAIN[:3]), 0.0)
    index.apply(B, stored(CHAIN), 0.0)
    assert set(index.match(CHAIN, 0.0)) == {B}
    index.set_trust(A, True)
    assert runs(index, A) == [(0, 3, Tier.L1)]


def test_distrust_survives_a_clear(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN), 0.0)
    index.set_trust(A, False)
    index.clear(A)
    index.apply(A, stored(CHAIN), 0.0)
    assert index.match(CHAIN, 0.0) == {}
    index.drop_source(A)
    index.apply(A, stored(CHAIN), 0.0)
    assert runs(index, A) == [(0, 10, Tier.L1)]


def test_clear_is_immediate_and_the_sweep_frees_memory(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN), 0.0)
    index.apply(B, stored(CHAIN[:2]), 0.0)
    index.clear(A)
    assert set(index.match(CHAIN, 0.0)) == {B}
    assert index.entries == 10
    steps = 1
    while index.sweep(1):
        steps += 1
    assert steps == SHARDS, "a step is one shard"
    assert index.entries == 2
    assert runs(index, B) == [(0, 2, Tier.L1)]


def test_a_cleared_source_starts_empty_before_any_sweep(index: BlockIndex) -> None:
    for i in range(50):  # more often than there are bits: sweeps itself when none is left
        index.apply(A, stored(CHAIN[i % 10 :]), 0.0)
        index.clear(A)
    index.apply(A, stored(CHAIN[:1]), 0.0)
    assert runs(index, A) == [(0, 1, Tier.L1)]


def test_a_bit_retired_during_a_sweep_waits_for_the_next(index: BlockIndex) -> None:
    index.apply(A, stored(CHAIN), 0.0)
    index.apply(B, stored(CHAIN), 0.0)
    index.clear(A)
    index.sweep(SHARDS // 2)
    index.clear(B)
    while index.sweep(1):
        pass
    assert index.entries == 0
    index.apply(A, stored(CHAIN[:1]), 0.0)
    assert set(index.match(CHAIN, 0.0)) == {A}


def test_too_many_sources_is_a_clear_error(index: BlockIndex) -> None:
    for i in range(8):
        index.apply(WorkerKey("w", i), stored(CHAIN), 0.0)
    with pytest.raises(SourceLimit, match="raise max_sources"):
        index.apply(A, stored(CHAIN), 0.0)
    index.drop_source(WorkerKey("w", 5))
    index.apply(A, stored(CHAIN), 0.0)
    assert len(index.match(CHAIN, 0.0)) == 8


def test_entries_are_bounded_and_matched_blocks_outlive_others() -> None:
    index = BlockIndex(max_entries=SHARDS * 16, max_sources=2)
    hot = tuple(range(SHARDS))
    index.apply(A, stored(hot), 0.0)
    for round_ in range(1, 100):
        index.apply(A, stored(tuple(range(round_ * SHARDS, (round_ + 1) * SHARDS))), 0.0)
        assert index.match(hot, 0.0)[A].blocks == SHARDS
        assert index.entries <= SHARDS * 16
    assert index.evicted > 0


def test_eviction_forgets_the_counts_too() -> None:
    index = BlockIndex(max_entries=SHARDS, max_sources=2)
    index.apply(A, stored((0,)), 0.0)
    index.apply(A, stored((0,)), 0.0)
    index.apply(A, stored((SHARDS,)), 0.0)  # the same shard, which holds one
    index.apply(A, stored((0,)), 0.0)
    index.apply(A, BlocksRemoved((0,), Tier.L1), 0.0)
    assert index.match((0,), 0.0) == {}


def test_figures_for_metrics(index: BlockIndex) -> None:
    empty = index.memory_bytes()
    index.apply(A, stored(tuple(range(2000))), 0.0)
    assert index.entries == 2000
    assert index.sources == (A,)
    assert index.memory_bytes() > empty
    with pytest.raises(ValueError, match="max_entries"):
        BlockIndex(max_entries=1)
