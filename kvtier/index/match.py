"""One walk over a prompt's blocks that finds every source's leading runs at once.

Neighbouring blocks mostly have the same holders, and equal masks are the same object, so the usual step is one lookup and one
comparison; sources are looked at one by one only where holders change.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from costmodel.values import Tier
from kvtier.index.sources import PLANES, TIERS

_TIER_COUNT = len(TIERS)


class BlockRun(NamedTuple):
    """`blocks` blocks from block `start` on, in one tier."""

    start: int
    blocks: int
    tier: Tier


class Match(msgspec.Struct, frozen=True):
    """One source's leading runs: contiguous from block 0, each block in its nearest tier; `age_ms` since it last spoke."""

    runs: tuple[BlockRun, ...]
    age_ms: float

    @property
    def blocks(self) -> int:
        last = self.runs[-1]
        return last.start + last.blocks


class Walk:
    """The state of one walk: which sources still hold every block, in which tier, and the runs closed so far."""

    __slots__ = ("_open", "_runs", "_stride", "_tiers", "alive")

    def __init__(self, stride: int, trusted: int) -> None:
        self.alive = trusted  # sources that hold every block so far
        self._stride = stride
        self._tiers = [0] * _TIER_COUNT  # of those, which are in each tier now
        self._open: dict[int, tuple[int, Tier]] = {}  # bit -> where its current run began
        self._runs: dict[int, list[BlockRun]] = {}

    def step(self, block: int, mask: int) -> None:
        """Holders of `block` differ from those of the block before it."""
        holders = self._nearest(mask)
        before = self._tiers
        lost = self.alive
        for tier_index, now in enumerate(holders):
            lost &= ~now
            changed = now & ~before[tier_index]
            if changed:
                self._start(block, changed, TIERS[tier_index])
        if lost:
            self.alive &= ~lost
            self._close(block, lost)
        self._tiers = holders

    def finish(self, block: int) -> dict[int, list[BlockRun]]:
        """Close what is open at the end of the walk; runs by bit, of sources that hold at least the first block."""
        self._close(block, self.alive)
        return self._runs

    def _nearest(self, mask: int) -> list[int]:
        """Per tier the live sources that have the block there and in no nearer one, reported or assumed."""
        stride = self._stride
        mask >>= 1
        left = self.alive
        holders = []
        for plane in range(_TIER_COUNT):
            here = (mask >> plane * stride | mask >> (plane + _TIER_COUNT) * stride) & left
            left &= ~here
            holders.append(here)
        return holders

    def _start(self, block: int, sources: int, tier: Tier) -> None:
        self._close(block, sources)
        for bit in bits(sources):
            self._open[bit] = (block, tier)

    def _close(self, block: int, sources: int) -> None:
        for bit in bits(sources):
            begun = self._open.pop(bit, None)
            if begun is not None and block > begun[0]:
                self._runs.setdefault(bit, []).append(BlockRun(begun[0], block - begun[0], begun[1]))


def bits(mask: int) -> list[int]:
    """Positions of the set bits, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def any_plane(stride: int, mask: int) -> int:
    """The sources whose bit is set in any plane of a mask."""
    mask >>= 1
    found = 0
    while mask:
        found |= mask
        mask >>= stride
    return found & (1 << stride) - 1


def full_plane(stride: int, source_bits: int) -> int:
    """A mask with the given sources' bits in every plane."""
    mask = 0
    for plane in range(PLANES):
        mask |= source_bits << plane * stride
    return mask << 1
