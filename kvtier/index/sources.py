"""Who may hold blocks: every source's bit in the index's masks, its trust, and when it last spoke.

A mask is one integer of planes, each `stride` bits wide, a bit for every worker and node: reported L1..L4, then assumed L1..L4.
Bit 0 of the whole mask says that the block was matched since the eviction hand last passed. A source that is emptied gives its
bit up and takes a fresh one, so that emptying costs nothing; the old bit is reused only after a sweep has removed it from every
mask.
"""

from __future__ import annotations

from costmodel.values import Tier, WorkerKey
from kvtier.index.layout import Home, Layout
from kvtier.index.source_key import NodeKey, SourceKey

TIERS = tuple(Tier)
PLANES = 2 * len(TIERS)
TOUCHED = 1


class SourceLimit(Exception):
    """More sources than the index was made for."""


class Sources:
    """Bits of live, retired and free sources. Not aware of blocks."""

    def __init__(self, max_sources: int) -> None:
        self.max_sources = max_sources
        self.stride = max_sources + max(8, max_sources // 4)  # spare bits for sources emptied since the last sweep
        self.all_bits = (1 << self.stride) - 1
        self.trusted = 0  # bits of the sources that may be matched
        self.retired = 0  # bits given up and not yet swept
        self._free = list(range(self.stride - 1, -1, -1))
        self._bits: dict[SourceKey, int] = {}
        self._keys: list[SourceKey | None] = [None] * self.stride
        self._heard_ms: dict[SourceKey, float] = {}
        self._distrusted: set[SourceKey] = set()
        self._homes: dict[WorkerKey, Home] = {}  # workers that reach the pool, and the node each is on
        self._layout: Layout | None = None

    def __contains__(self, source: SourceKey) -> bool:
        return source in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def keys(self) -> tuple[SourceKey, ...]:
        return tuple(self._bits)

    def bit(self, source: SourceKey) -> int | None:
        return self._bits.get(source)

    def key(self, bit: int) -> SourceKey:
        key = self._keys[bit]
        assert key is not None, "a live bit belongs to a source"
        return key

    @property
    def layout(self) -> Layout:
        """For walks; made anew after a source has changed."""
        if self._layout is None:
            keys = {bit: key for key, bit in self._bits.items()}
            heard = {key for bit, key in keys.items() if isinstance(key, WorkerKey) and self.trusted >> bit & 1}
            self._layout = Layout(self.stride, keys, self.trusted, dict(self._homes), heard)
        return self._layout

    def attach(self, worker: WorkerKey, home: Home) -> None:
        if self._homes.get(worker) != home:
            self._homes[worker] = home
            self._layout = None

    def detach(self, worker: WorkerKey) -> None:
        if worker in self._homes:
            del self._homes[worker]
            self._layout = None

    def age_ms(self, source: SourceKey, now_ms: float) -> float:
        return max(0.0, now_ms - self._heard_ms[source])

    def node_ages_ms(self, now_ms: float) -> dict[str, float]:
        """Since each node last said anything."""
        ages: dict[str, float] = {}
        for key, heard_ms in self._heard_ms.items():
            if isinstance(key, NodeKey):
                age_ms = max(0.0, now_ms - heard_ms)
                ages[key.node] = min(age_ms, ages.get(key.node, age_ms))
        return ages

    def heard(self, source: SourceKey, now_ms: float) -> None:
        self._heard_ms[source] = max(now_ms, self._heard_ms.get(source, now_ms))

    @property
    def exhausted(self) -> bool:
        """No bit is free: a sweep must finish before a source can be added or emptied."""
        return not self._free

    def add(self, source: SourceKey) -> int:
        """Give a source its bit. Raises `SourceLimit`."""
        if len(self._bits) >= self.max_sources:
            raise SourceLimit(f"the index takes {self.max_sources} sources and {source} is one more: raise max_sources")
        bit = self._free.pop()
        self._bits[source] = bit
        self._keys[bit] = source
        self._layout = None
        if source not in self._distrusted:
            self.trusted |= 1 << bit
        return bit

    def retire(self, source: SourceKey) -> int | None:
        """Take a source's bit away; None if it has none. Its trust is remembered, its age is not."""
        bit = self._bits.pop(source, None)
        if bit is None:
            return None
        self._keys[bit] = None
        self._layout = None
        self._heard_ms.pop(source, None)
        self.trusted &= ~(1 << bit)
        self.retired |= 1 << bit
        return bit

    def release(self, swept: int) -> None:
        """Bits that a whole sweep has removed from every mask may be used again."""
        self.retired &= ~swept
        self._free.extend(bit for bit in range(self.stride) if swept >> bit & 1)

    def forget(self, source: SourceKey) -> None:
        """A source that has left for good is no longer remembered as distrusted."""
        self._distrusted.discard(source)

    def is_trusted(self, source: SourceKey) -> bool:
        bit = self._bits.get(source)
        return bit is not None and bool(self.trusted >> bit & 1)

    def set_trust(self, source: SourceKey, trusted: bool) -> None:
        bit = self._bits.get(source)
        if trusted != self.is_trusted(source):
            self._layout = None
        if trusted:
            self._distrusted.discard(source)
            self.trusted |= 0 if bit is None else 1 << bit
        else:
            self._distrusted.add(source)
            self.trusted &= ~0 if bit is None else ~(1 << bit)
