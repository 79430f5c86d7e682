"""The mask walk against the obvious: a dictionary of counters for every source."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun

SOURCES = tuple(WorkerKey(f"w{i}", i % 2) for i in range(4))
HASHES = tuple((-1) ** i * (i << 60 | i) for i in range(8))
TIERS = tuple(Tier)


class Model:
    """One source, plainly."""

    def __init__(self) -> None:
        self.reported: Counter[tuple[int, Tier]] = Counter()
        self.assumed: set[tuple[int, Tier]] = set()

    def apply(self, event: BlockEvent) -> None:
        if isinstance(event, AllCleared):
            self.reported.clear()
            self.assumed.clear()
        elif isinstance(event, BlocksStored):
            self.reported.update((block, event.tier) for block in event.hashes)
            self.assumed = {(block, tier) for block, tier in self.assumed if block not in event.hashes}
        else:
            tiers = TIERS if event.tier is None else (event.tier,)
            gone = {(block, tier) for block in event.hashes for tier in tiers}
            self.assumed -= gone
            for key in gone:
                self.reported[key] = max(0, self.reported[key] - 1)

    def held(self, hashes: tuple[int, ...]) -> list[int]:
        held = {block for block, _ in set(+self.reported) | self.assumed}
        return [block for block in hashes if block in held]

    def runs(self, hashes: tuple[int, ...]) -> tuple[BlockRun, ...]:
        held = set(+self.reported) | self.assumed
        runs: list[BlockRun] = []
        for i, block in enumerate(hashes):
            tier = min((tier for tier in TIERS if (block, tier) in held), default=None)
            if tier is None:
                break
            if runs and runs[-1].tier == tier:
                runs[-1] = runs[-1]._replace(blocks=runs[-1].blocks + 1)
            else:
                runs.append(BlockRun(i, 1, tier))
        return tuple(runs)


hashes = st.lists(st.sampled_from(HASHES), min_size=1, max_size=8, unique=True).map(tuple)
tiers = st.sampled_from(TIERS)
events = st.one_of(
    st.builds(BlocksStored, hashes, st.none(), tiers, st.just(16)),
    st.builds(BlocksStored, hashes, st.none(), tiers, st.just(16)),
    st.builds(BlocksRemoved, hashes, st.none() | tiers),
    st.builds(AllCleared),
    st.tuples(st.just("assume"), hashes, tiers),
    st.tuples(st.just("refute"), hashes, tiers),
    st.tuples(st.just("match"), hashes, tiers),
    st.tuples(st.just("sweep"), hashes, tiers),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(history=st.lists(st.tuples(st.sampled_from(SOURCES), events), max_size=40), prompt=hashes)
def test_match_equals_model(
    history: list[tuple[WorkerKey, BlockEvent | tuple[str, tuple[int, ...], Tier]]], prompt: tuple[int, ...]
) -> None:
    index = BlockIndex(max_entries=4096, max_sources=len(SOURCES))
    models = {source: Model() for source in SOURCES}
    for source, event in history:
        model = models[source]
        if not isinstance(event, tuple):
            index.apply(source, event, 0.0)
            model.apply(event)
            continue
        action, blocks, tier = event
        if action == "assume":
            index.assume(source, blocks, tier, 0.0)
            model.assumed |= {(block, tier) for block in blocks}
        elif action == "refute":
            index.refute(source, blocks)
            model.assumed = {(block, held) for block, held in model.assumed if block not in blocks}
        elif action == "match":
            index.match(blocks, 0.0)
        else:
            index.sweep(20)
    expected = {source: model.runs(prompt) for source, model in models.items()}
    matched = {source: match.runs for source, match in index.match(prompt, 0.0).items()}
    assert matched == {source: runs for source, runs in expected.items() if runs}
    blocks = {source: blocks_of(runs) for source, runs in expected.items()}
    if all(len(models[source].held(prompt)) == len(held) for source, held in blocks.items()):  # as along a chain
        assert index.leading(prompt) == {source: len(held) for source, held in blocks.items() if held}


def blocks_of(runs: tuple[BlockRun, ...]) -> list[int]:
    return [block for run in runs for block in range(run.start, run.start + run.blocks)]


CHAIN = tuple((-1) ** i * (i << 55 | i * 7919) for i in range(120))


COUNTS = st.integers(0, len(CHAIN))


@given(held=st.lists(COUNTS, min_size=len(SOURCES), max_size=len(SOURCES)), asked=COUNTS)
def test_leading_counts_along_a_chain(held: list[int], asked: int) -> None:
    index = BlockIndex(max_entries=4096, max_sources=len(SOURCES))
    for source, blocks in zip(SOURCES, held, strict=True):
        index.assume(source, CHAIN[:blocks], Tier.L1, 0.0)
    expected = {source: min(blocks, asked) for source, blocks in zip(SOURCES, held, strict=True)}
    for _ in range(2):  # the second time with what the first has touched
        assert index.leading(CHAIN[:asked]) == {source: count for source, count in expected.items() if count}
