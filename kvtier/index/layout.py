"""What a walk needs to know of the sources, prepared once and kept until a source changes."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.values import Tier, WorkerKey
from kvtier.index.source_key import NodeKey, SourceKey

TIER_COUNT = len(Tier)


class Home(NamedTuple):
    """Where a worker reads pages: from `node`'s agent, if it is on one, and from other nodes where `remote`; `brought`: from
    others only what somebody brings near for it."""

    node: str | None
    remote: bool = True
    brought: bool = False

    @property
    def alone(self) -> Home:
        """While nobody brings anything."""
        return Home(self.node, remote=False) if self.brought else self


class Flags(NamedTuple):
    """One source's bits in a mask: its own among the sources, all of its planes, all others, and each tier's (see `Slot`)."""

    bit: int
    all: int
    others: int
    tiers: tuple[int, ...]


class Slot(NamedTuple):
    """One tier of a node in a mask: a number of its own, the node, the tier, its planes, reported and assumed, and the rest."""

    number: int
    node: str
    tier: Tier
    flag: int
    others: int


class Layout:
    """Masks and maps over the sources that may be believed."""

    def __init__(
        self, stride: int, keys: dict[int, SourceKey], trusted: int, homes: dict[WorkerKey, Home], heard: set[WorkerKey]
    ) -> None:
        """`keys` by bit; `homes`: workers that reach the pool; `heard`: those with a trusted bit."""
        self.stride = stride
        self.all_bits = (1 << stride) - 1
        self._keys = keys
        self.flags: dict[int, Flags] = {}
        self.workers = 0  # bits of the workers
        self.worker_planes = 0
        self.node_planes = 0
        self.pool_planes = {Tier.L3: 0, Tier.L4: 0}  # of the nodes, tier by tier
        self.slots: dict[int, Slot] = {}  # of the nodes, by the position of either bit in a mask
        self.holders: dict[int, tuple[int, Flags]] = {}  # the workers' bits and flags, the same way
        self.unpooled = self.all_bits  # all but the bits of the workers that reach the pool
        self.homes = homes
        self.unheard = tuple(worker for worker in homes if worker not in heard)  # reach the pool, and tell nothing themselves
        for bit, key in keys.items():
            if trusted >> bit & 1:
                self._place(bit, key)

    def plane(self, mask: int, tier: Tier) -> int:
        """Bits of the sources that hold a block in `tier`."""
        mask >>= 1 + (tier - 1) * self.stride
        return (mask | mask >> TIER_COUNT * self.stride) & self.all_bits

    def node(self, bit: int) -> str:
        key = self._keys[bit]
        assert isinstance(key, NodeKey), "only nodes have pool planes"
        return key.node

    def worker(self, bit: int) -> WorkerKey:
        key = self._keys[bit]
        assert isinstance(key, WorkerKey), "only workers are matched"
        return key

    def _place(self, bit: int, key: SourceKey) -> None:
        reported = [1 << 1 + plane * self.stride + bit for plane in range(TIER_COUNT)]
        tiers = tuple(flag | flag << TIER_COUNT * self.stride for flag in reported)  # planes of what is assumed follow
        flags = self.flags[bit] = Flags(1 << bit, sum(tiers), ~sum(tiers), tiers)
        if isinstance(key, NodeKey):
            for tier in self.pool_planes:
                self.pool_planes[tier] |= tiers[tier - 1]
                self.node_planes |= tiers[tier - 1]
                position = reported[tier - 1].bit_length()
                slot = Slot(position, key.node, tier, tiers[tier - 1], ~tiers[tier - 1])
                self.slots[position] = self.slots[position + TIER_COUNT * self.stride] = slot
            return
        for plane in range(2 * TIER_COUNT):
            self.holders[plane * self.stride + bit + 2] = (bit, flags)
        self.workers |= flags.bit
        self.worker_planes |= flags.all
        if key in self.homes:
            self.unpooled &= ~flags.bit
