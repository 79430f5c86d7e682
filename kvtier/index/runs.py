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


Run = tuple[int, int, Tier, str]  # a `BlockRun` in the making


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


def through(layers: Sequence[Sequence[Run]], start: int, end: int) -> list[BlockRun]:
    """Each block within [start, end) from the first layer that has it; each layer's runs are in order and do not overlap."""
    taken: list[BlockRun] = []
    if start < end:
        _fill(layers, 0, start, end, taken)
    return taken


def _fill(layers: Sequence[Sequence[Run]], depth: int, at: int, end: int, taken: list[BlockRun]) -> None:
    """From the layer at `depth`, and where it has nothing from those behind it."""
    for first, blocks, tier, source in layers[depth] if depth < len(layers) else ():
        last = first + blocks
        if last <= at:
            continue
        if first >= end:
            break
        if first > at:
            _fill(layers, depth + 1, at, first, taken)
            at = first
        if last >= end:
            taken.append(BlockRun(at, end - at, tier, source))
            return
        taken.append(BlockRun(at, last - at, tier, source))
        at = last
    if depth + 1 < len(layers):
        _fill(layers, depth + 1, at, end, taken)


def join(runs: Sequence[Run], run: Run) -> Sequence[Run]:
    """`runs` of one tier and source, and one more of these that may overlap them."""
    joined = []
    start, blocks, tier, source = run
    end = start + blocks
    for other in runs:
        first, last = other[0], other[0] + other[1]
        if last < start or first > end:
            joined.append(other)
        else:
            start, end = min(start, first), max(end, last)
    joined.append((start, end - start, tier, source))
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
