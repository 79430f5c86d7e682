"""How fast and how large the index of engine blocks and pool pages is, for `bench tiers`: no network, no engine."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from random import Random

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import NodeKey, SourceKey

PROMPT_TOKENS = 100_000
PAGE_TOKENS = 64
WORKERS = 64
WORKERS_PER_NODE = (1, 8)
_MILLION = 1_000_000
_BATCH = 1000


def worst_match_ms() -> float:
    """`match_ms` of the slower one of the layouts."""
    return max(match_ms(workers_per_node=each) for each in WORKERS_PER_NODE)


def match_ms(*, workers: int = WORKERS, workers_per_node: int, rounds: int = 200, seed: int = 1) -> float:
    """Median CPU time of one `match` of a 100k-token prompt of which every worker and node holds another part, over four tiers.

    Each worker's own L1 and L2 and each node's L3 and L4 end somewhere else, so that holders change hundreds of times.
    """
    rng = Random(seed)
    chain = _hashes(rng, PROMPT_TOKENS // PAGE_TOKENS + 1)
    index = BlockIndex(max_entries=_MILLION, max_sources=workers + workers // workers_per_node)
    for number in range(workers):
        worker = WorkerKey(f"w{number}")
        _hold(index, worker, chain, (Tier.L1, Tier.L2), rng)
        index.attach(worker, f"n{number // workers_per_node}")
    for number in range(-(-workers // workers_per_node)):
        _hold(index, NodeKey(f"n{number}"), chain, (Tier.L3, Tier.L4), rng)
    spent_ms = sorted(_time_match(index, chain) for _ in range(rounds))
    return spent_ms[len(spent_ms) // 2]


def index_mb_per_million(*, workers: int = WORKERS, seed: int = 1) -> float:
    """MB (1e6 bytes, as the allocator counts them) that a million blocks take, each with one to three holders."""
    rng = Random(seed)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        index = BlockIndex(max_entries=2 * _MILLION, max_sources=workers)
        for _ in range(_MILLION // _BATCH):
            blocks = tuple(_hashes(rng, _BATCH))
            for number in rng.sample(range(workers), rng.randint(1, 3)):
                index.apply(WorkerKey(f"w{number}"), BlocksStored(blocks, None, rng.choice(tuple(Tier)), PAGE_TOKENS), 0.0)
        del blocks
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / 1e6 * _MILLION / index.entries
    finally:
        tracemalloc.stop()


def _hold(index: BlockIndex, source: SourceKey, chain: Sequence[int], tiers: Sequence[Tier], rng: Random) -> None:
    """A run in each tier, one after the other, from the first block on."""
    start = 0
    for tier in tiers:
        end = rng.randint(start, len(chain))
        index.apply(source, BlocksStored(tuple(chain[start:end]), None, tier, PAGE_TOKENS), 0.0)
        start = end


def _hashes(rng: Random, count: int) -> list[int]:
    return [rng.getrandbits(64) - (1 << 63) for _ in range(count)]


def _time_match(index: BlockIndex, chain: Sequence[int]) -> float:
    started_ns = time.thread_time_ns()
    matches = index.match(chain, 0.0)
    spent_ms = (time.thread_time_ns() - started_ns) / 1e6
    assert matches, "the first block is held"
    return spent_ms
