"""Runs of blocks, and how runs from a nearer place go before those from a farther one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from costmodel.values import Tier


class BlockRun(NamedTuple):
    """`blocks` blocks from block `start` on, in one tier, at one source node ("" = the worker itself)."""

    start: int
    blocks: int
    tier: Tier
    source: str = ""


class Match(msgspec.Struct, frozen=True):
    """One worker's leading runs: contiguous from block 0, each block in its nearest place.

    `age_ms` is how long ago the worker last spoke; for one that holds nothing itself, the freshest node it would read from.
    """

    runs: tuple[BlockRun, ...]
    age_ms: float

    @property
    def blocks(self) -> int:
        last = self.runs[-1]
        return last.start + last.blocks


def through(layers: Sequence[Sequence[BlockRun]], start: int, end: int) -> list[BlockRun]:
    """Each block within [start, end) from the first layer that has it; each layer's runs are in order and do not overlap."""
    taken: list[BlockRun] = []
    at = start
    while at < end:
        until, here = end, None
        for layer in layers:
            for run in layer:
                first, last = run[0], run[0] + run[1]
                if last > at:
                    if first <= at:
                        here = run
                        first = last
                    if first < until:  # where this run ends, or where a nearer layer takes over
                        until = first
                    break
            if here is not None:
                taken.append(BlockRun(at, until - at, here.tier, here.source))
                break
        at = until
    return taken


def join(runs: Sequence[BlockRun], run: BlockRun) -> Sequence[BlockRun]:
    """`runs` of one tier and source, and one more of these that may overlap them."""
    joined = []
    start, end = run.start, run.start + run.blocks
    for other in runs:
        if other.start + other.blocks < start or other.start > end:
            joined.append(other)
        else:
            start, end = min(start, other.start), max(end, other.start + other.blocks)
    joined.append(BlockRun(start, end - start, run.tier, run.source))
    return sorted(joined)


def contiguous(runs: Iterable[BlockRun], start: int) -> list[BlockRun]:
    """The leading part of `runs`, which are in order, that has no hole from `start` on."""
    leading = []
    for run in runs:
        if run.start != start:
            break
        leading.append(run)
        start += run.blocks
    return leading
