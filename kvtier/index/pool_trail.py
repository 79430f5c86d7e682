"""Where a prompt's blocks lie in the pool, as a walk passes them: which nodes hold them, and which of these to read from.

A worker reads from its own node where that holds a block in DRAM, else from another node's DRAM, then from SSD in the same
order. Which other node does not depend on the worker: the one that holds the blocks longest is kept until it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from costmodel.values import Tier
from kvtier.index.layout import Home, Layout, Slot
from kvtier.index.runs import BlockRun, Run, contiguous, join, through

_POOL_TIERS = _DRAM, _SSD = Tier.L3, Tier.L4


class _Chosen(NamedTuple):
    """The node to read from: its bit, its planes in the tier, and since which block."""

    bit: int
    flag: int
    start: int


class PoolTrail:
    """`peek(block)` gives the mask of a block farther on, `size` is their number."""

    def __init__(self, layout: Layout, peek: Callable[[int], int], size: int) -> None:
        self.mask = 0  # of the nodes alone, at the block that was passed last
        self._layout = layout
        self._peek = peek
        self._size = size
        self._opened: dict[int, tuple[Slot, int]] = {}  # by a slot's number -> since which block the node holds them all
        self._local: dict[Tier, dict[str, Sequence[Run]]] = {tier: {} for tier in _POOL_TIERS}
        self._chosen: dict[Tier, _Chosen] = {}
        self._remote: dict[Tier, list[Run]] = {tier: [] for tier in _POOL_TIERS}
        self.broke_at: int | None = None  # first block that no node holds

    def step(self, block: int, mask: int) -> None:
        """Nodes that hold `block` differ from those of the block before it."""
        self._open_and_end(block, mask ^ self.mask, mask)
        self.mask = mask
        for tier, planes in self._layout.pool_planes.items():
            chosen = self._chosen.get(tier)
            if mask & planes if chosen is None else not mask & chosen.flag:
                self._choose(block, mask & planes, tier)
        if not mask and self.broke_at is None:
            self.broke_at = block

    def finish(self, block: int) -> None:
        """The walk ends before `block`."""
        if self.broke_at is None:
            self.broke_at = block if self.mask else 0
        for slot, start in self._opened.values():
            self._end_local(slot, start, block)
        for tier in list(self._chosen):
            self._end_remote(tier, block)

    def layers(self, home: Home) -> Sequence[Sequence[Run]]:
        """For workers of one home, after `finish`: where blocks of the pool would be read from, nearest first."""
        node = home.node or ""
        dram, ssd = self._local[_DRAM].get(node, ()), self._local[_SSD].get(node, ())
        return (dram, self._remote[_DRAM], ssd, self._remote[_SSD]) if home.remote else (dram, ssd)

    def leading(self, home: Home) -> list[BlockRun]:
        """The leading runs of a worker that holds nothing itself."""
        return contiguous(through(self.layers(home), 0, self.broke_at or 0), 0)

    def _open_and_end(self, block: int, changed: int, mask: int) -> None:
        slots, opened = self._layout.slots, self._opened
        while changed:
            slot = slots[changed.bit_length()]
            number, _, _, flag, others = slot
            changed &= others
            if not mask & flag:
                self._end_local(*opened.pop(number), block)
            elif number not in opened:  # else assumed before, reported now, or both
                opened[number] = (slot, block)

    def _choose(self, block: int, held: int, tier: Tier) -> None:
        """Another node to read from, of those in `held`, which is of the tier alone."""
        if tier in self._chosen:
            self._end_remote(tier, block)
        if held:
            bit = self._longest(block, self._layout.plane(held, tier), tier)
            self._chosen[tier] = _Chosen(bit, self._layout.flags[bit].tiers[tier - 1], block)

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

    def _end_local(self, slot: Slot, start: int, block: int) -> None:
        _, node, tier, _, _ = slot
        local = self._local[tier]
        run = (start, block - start, tier, node)
        before = local.get(node)
        local[node] = join(before, run) if before else (run,)  # a node may be several sources, whose runs overlap

    def _end_remote(self, tier: Tier, block: int) -> None:
        chosen = self._chosen.pop(tier)
        self._remote[tier].append((chosen.start, block - chosen.start, tier, self._layout.node(chosen.bit)))
