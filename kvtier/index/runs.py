"""Runs of blocks, and how runs from a nearer place cover those from a farther one."""

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


def clip(runs: Iterable[BlockRun], start: int, end: int) -> list[BlockRun]:
    """The part of `runs`, which are in order, within [start, end)."""
    clipped = []
    for run in runs:
        first, last = run.start, run.start + run.blocks
        if first >= end:
            break
        if last > start:
            if first < start or last > end:
                first = max(first, start)
                run = BlockRun(first, min(last, end) - first, run.tier, run.source)
            clipped.append(run)
    return clipped


def overlay(upper: Sequence[BlockRun], lower: Sequence[BlockRun]) -> Sequence[BlockRun]:
    """`upper`, and `lower` where it leaves holes. Both in order and without overlap, and so is the result."""
    if not upper or not lower:
        return upper or lower
    merged: list[BlockRun] = []
    at = 0
    for run in upper:
        if run.start > at:
            merged += clip(lower, at, run.start)
        merged.append(run)
        at = run.start + run.blocks
    merged += clip(lower, at, lower[-1].start + lower[-1].blocks)
    return merged


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
