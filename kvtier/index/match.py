"""One walk over a prompt's blocks that finds every worker's leading runs at once.

Neighbouring blocks mostly have the same holders, and equal masks are the same object, so the usual step is one lookup and one
comparison; where holders change, only those that changed are looked at. A worker that reaches the pool goes on through blocks
that it does not hold itself as long as some node holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from costmodel.values import WorkerKey
from kvtier.index.layout import Home, Layout
from kvtier.index.pool_trail import PoolTrail
from kvtier.index.runs import BlockRun, contiguous, through
from kvtier.index.sources import PLANES, TIERS


class Walk:
    """The state of one walk. `peek(block)` gives the mask of any block, `size` is their number; `alone`: of `Home.alone`."""

    __slots__ = ("_alone", "_changes", "_ends", "_lacking", "_layout", "_mask", "_relevant", "_tiers", "_workers", "pool")

    def __init__(self, layout: Layout, peek: Callable[[int], int], size: int, *, alone: bool = False) -> None:
        self.pool = PoolTrail(layout, peek, size)
        self._layout = layout
        self._alone = alone
        self._mask = 0
        self._relevant = layout.worker_planes | layout.node_planes
        self._workers = layout.workers  # that could restore every block so far
        self._lacking = layout.workers  # of those, which do not hold the block themselves
        self._tiers: dict[int, int] = {}  # bit -> its nearest tier now
        self._changes: dict[int, list[tuple[int, int]]] = {}  # bit -> (block, its nearest tier from there on, 0 = none)
        self._ends: dict[int, int] = {}  # bit -> first block that the worker could not restore

    @property
    def alive(self) -> bool:
        """Whether a further block can matter to anyone."""
        return bool(self._workers) or (bool(self._layout.unheard) and self.pool.broke_at is None)

    def step(self, block: int, mask: int) -> None:
        """Holders of `block` differ from those of the block before it; the first block always does."""
        layout = self._layout
        changed = (mask ^ self._mask) & self._relevant
        self._mask = mask
        nodes = mask & layout.node_planes
        if nodes != self.pool.mask or not block:
            self.pool.step(block, nodes)
        changed &= layout.worker_planes
        if changed:
            self._change(block, mask, changed)
        lost = self._lacking & layout.unpooled if nodes else self._lacking
        if lost:
            self._lose(block, lost)

    def finish(self, block: int) -> Iterator[tuple[int, list[BlockRun]]]:
        """The walk ends before `block`: (bit, runs) of every worker that could restore the first block."""
        self.pool.finish(block)
        for bit in bits(self._workers):
            self._ends[bit] = block
        for bit, end in self._ends.items():
            if end and (runs := self._runs(bit, end)):
                yield bit, runs

    def home(self, worker: WorkerKey) -> Home | None:
        """None for a worker that does not reach the pool."""
        home = self._layout.homes.get(worker)
        return home.alone if home is not None and self._alone else home

    def _change(self, block: int, mask: int, changed: int) -> None:
        holders, tiers = self._layout.holders, self._tiers
        while changed:
            bit, flags = holders[changed.bit_length()]
            changed &= flags.others
            nearest = 0
            if mask & flags.all:
                for plane, flag in enumerate(flags.tiers, 1):
                    if mask & flag:
                        nearest = plane
                        break
            if nearest == tiers.get(bit, 0):
                continue
            tiers[bit] = nearest
            self._changes.setdefault(bit, []).append((block, nearest))
            if nearest:
                self._lacking &= ~flags.bit
            else:
                self._lacking |= flags.bit

    def _lose(self, block: int, lost: int) -> None:
        self._workers &= ~lost
        self._lacking &= ~lost
        self._relevant &= ~full_plane(self._layout.stride, lost)
        if block:
            for bit in bits(lost):
                self._ends[bit] = block

    def _runs(self, bit: int, end: int) -> list[BlockRun]:
        runs: list[BlockRun] = []
        home = self.home(self._layout.worker(bit))
        start = tier = 0
        for block, now in (*self._changes.get(bit, ()), (end, 0)):
            if block > start:
                if tier:
                    runs.append(BlockRun(start, block - start, TIERS[tier - 1]))
                elif home is not None:
                    runs += through(self.pool.layers(home), start, block)
                start = block
            tier = now
        return runs if home is None or home.remote else contiguous(runs, 0)


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
