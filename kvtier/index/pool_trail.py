"""Where a prompt's blocks lie in the pool, as a walk passes them: which nodes hold them, and which of these to read from.

A worker reads from its own node where that holds a block in DRAM, else from another node's DRAM, then from SSD in the same
order. Which other node does not depend on the worker: the one that holds the blocks longest is kept until it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.values import Tier
from kvtier.index.layout import Home, Layout
from kvtier.index.runs import BlockRun, contiguous, join, through

_POOL_TIERS = (Tier.L3, Tier.L4)


class PoolTrail:
    """`peek(block)` gives the mask of a block farther on, `size` is their number."""

    def __init__(self, layout: Layout, peek: Callable[[int], int], size: int) -> None:
        self.mask = 0  # of the nodes alone, at the block that was passed last
        self._layout = layout
        self._peek = peek
        self._size = size
        self._opened: dict[tuple[int, Tier], int] = {}  # (node's bit, tier) -> since which block it holds them all
        self._local: dict[tuple[str, Tier], Sequence[BlockRun]] = {}
        self._chosen: dict[Tier, tuple[int, int]] = {}  # tier -> bit of the node to read from, since which block
        self._remote: dict[Tier, list[BlockRun]] = {tier: [] for tier in _POOL_TIERS}
        self.broke_at: int | None = None  # first block that no node holds

    def step(self, block: int, mask: int) -> None:
        """Nodes that hold `block` differ from those of the block before it."""
        changed = mask ^ self.mask
        self.mask = mask
        for tier, planes in self._layout.pool_planes.items():
            if changed & planes:
                self._change(block, changed & planes, mask, tier)
        if not mask and self.broke_at is None:
            self.broke_at = block

    def finish(self, block: int) -> None:
        """The walk ends before `block`."""
        if self.broke_at is None:
            self.broke_at = block if self.mask else 0
        for (bit, tier), start in self._opened.items():
            self._end_local(bit, tier, start, block)
        for tier in list(self._chosen):
            self._end_remote(tier, block)

    def layers(self, home: Home) -> Sequence[Sequence[BlockRun]]:
        """For workers of one home, after `finish`: where blocks of the pool would be read from, nearest first."""
        dram, ssd = (self._local.get((home.node, tier), ()) if home.node else () for tier in _POOL_TIERS)
        return (dram, self._remote[Tier.L3], ssd, self._remote[Tier.L4]) if home.remote else (dram, ssd)

    def leading(self, home: Home) -> list[BlockRun]:
        """The leading runs of a worker that holds nothing itself."""
        return contiguous(through(self.layers(home), 0, self.broke_at or 0), 0)

    def _change(self, block: int, changed: int, mask: int, tier: Tier) -> None:
        layout, opened = self._layout, self._opened
        while changed:
            bit = ((changed & -changed).bit_length() - 2) % layout.stride
            flag = layout.flags[bit].tiers[tier - 1]
            changed &= ~flag
            if mask & flag:
                opened.setdefault((bit, tier), block)
            elif (bit, tier) in opened:
                self._end_local(bit, tier, opened.pop((bit, tier)), block)
        chosen = self._chosen.get(tier)
        if chosen is not None and not mask & layout.flags[chosen[0]].tiers[tier - 1]:
            self._end_remote(tier, block)
            chosen = None
        if chosen is None and mask & layout.pool_planes[tier]:
            self._chosen[tier] = (self._longest(block, layout.plane(mask, tier), tier), block)

    def _longest(self, block: int, candidates: int, tier: Tier) -> int:
        """The candidate that still holds a block farther on than the others do, roughly."""
        distance = self._size - 1 - block
        while distance and candidates & (candidates - 1):
            later = self._layout.plane(self._peek(block + distance), tier) & candidates
            if later:
                candidates = later
                break
            distance //= 2
        return (candidates & -candidates).bit_length() - 1

    def _end_local(self, bit: int, tier: Tier, start: int, block: int) -> None:
        node = self._layout.node(bit)
        run = BlockRun(start, block - start, tier, node)
        before = self._local.get((node, tier))
        self._local[node, tier] = join(before, run) if before else (run,)  # a node may be several sources, whose runs overlap

    def _end_remote(self, tier: Tier, block: int) -> None:
        bit, start = self._chosen.pop(tier)
        self._remote[tier].append(BlockRun(start, block - start, tier, self._layout.node(bit)))
