"""Who may hold blocks: every source's bit in the index's masks, its trust, and when it last spoke.

A mask is one integer of planes, each `stride` bits wide, one bit a source: reported L1..L4, then assumed L1..L4. Bit 0 of the
whole mask says that the block was matched since the eviction hand last passed. A source that is emptied gives its bit up and
takes a fresh one, so that emptying costs nothing; the old bit is reused only after a sweep has removed it from every mask.
"""

from __future__ import annotations

from costmodel.values import Tier, WorkerKey

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
        self._bits: dict[WorkerKey, int] = {}
        self._keys: list[WorkerKey | None] = [None] * self.stride
        self._heard_ms: dict[WorkerKey, float] = {}
        self._distrusted: set[WorkerKey] = set()

    def __contains__(self, source: WorkerKey) -> bool:
        return source in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def keys(self) -> tuple[WorkerKey, ...]:
        return tuple(self._bits)

    def bit(self, source: WorkerKey) -> int | None:
        return self._bits.get(source)

    def key(self, bit: int) -> WorkerKey:
        key = self._keys[bit]
        assert key is not None, "a live bit belongs to a source"
        return key

    def age_ms(self, source: WorkerKey, now_ms: float) -> float:
        return max(0.0, now_ms - self._heard_ms[source])

    def heard(self, source: WorkerKey, now_ms: float) -> None:
        self._heard_ms[source] = now_ms

    @property
    def exhausted(self) -> bool:
        """No bit is free: a sweep must finish before a source can be added or emptied."""
        return not self._free

    def add(self, source: WorkerKey) -> int:
        """Give a source its bit. Raises `SourceLimit`."""
        if len(self._bits) >= self.max_sources:
            raise SourceLimit(f"the index takes {self.max_sources} sources and {source} is one more: raise max_sources")
        bit = self._free.pop()
        self._bits[source] = bit
        self._keys[bit] = source
        if source not in self._distrusted:
            self.trusted |= 1 << bit
        return bit

    def retire(self, source: WorkerKey) -> int | None:
        """Take a source's bit away; None if it has none. Its trust is remembered, its age is not."""
        bit = self._bits.pop(source, None)
        if bit is None:
            return None
        self._keys[bit] = None
        self._heard_ms.pop(source, None)
        self.trusted &= ~(1 << bit)
        self.retired |= 1 << bit
        return bit

    def release(self, swept: int) -> None:
        """Bits that a whole sweep has removed from every mask may be used again."""
        self.retired &= ~swept
        self._free.extend(bit for bit in range(self.stride) if swept >> bit & 1)

    def forget(self, source: WorkerKey) -> None:
        """A source that has left for good is no longer remembered as distrusted."""
        self._distrusted.discard(source)

    def is_trusted(self, source: WorkerKey) -> bool:
        bit = self._bits.get(source)
        return bit is not None and bool(self.trusted >> bit & 1)

    def set_trust(self, source: WorkerKey, trusted: bool) -> None:
        bit = self._bits.get(source)
        if trusted:
            self._distrusted.discard(source)
            self.trusted |= 0 if bit is None else 1 << bit
        else:
            self._distrusted.add(source)
            self.trusted &= ~0 if bit is None else ~(1 << bit)
