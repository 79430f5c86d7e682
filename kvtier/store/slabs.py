"""Offsets in a pool of bytes: slabs of equal size, each cut into slots of one length class.

KV pages come in few lengths, thousands of each; so a slab serves one class while any of its slots is in use and is free for
every class again when none is. Slots are aligned to a granule, which lets an SSD read land in a slot directly. Pure
arithmetic: it touches no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile

GRANULE_BYTES = 4096


class PageTooLarge(Exception):
    """A page does not fit a slab. The message names both and the key to raise."""


def class_bytes(length: int) -> int:
    """The slot size for `length` bytes."""
    return -(-length // GRANULE_BYTES) * GRANULE_BYTES or GRANULE_BYTES


class SlabAllocator:
    """Sizes in bytes. What does not fill a whole slab at the pool's end is left unused."""

    def __init__(self, pool_bytes: int, slab_bytes: int) -> None:
        if slab_bytes % GRANULE_BYTES or not GRANULE_BYTES <= slab_bytes <= pool_bytes:
            raise ValueError(f"slab_bytes must be a multiple of {GRANULE_BYTES} and at most pool_bytes, not {slab_bytes}")
        self.slab_bytes = slab_bytes
        self.slabs = pool_bytes // slab_bytes
        self.used_bytes = 0  # in slots, rounded up to their class
        self._free_slabs = list(range(self.slabs - 1, -1, -1))
        self._class = [0] * self.slabs
        self._used = [0] * self.slabs  # slots in use
        self._fresh = [0] * self.slabs  # slots never handed out since the slab took its class
        self._freed = [array("q") for _ in range(self.slabs)]  # offsets
        self._cut_for = [0] * self.slabs  # the class that a slab last had
        self._cuts = [array("q") for _ in range(self.slabs)]  # offsets of all its slots for that
        self._partial: dict[int, dict[int, None]] = {}  # class -> slabs with a free slot, oldest first

    @property
    def capacity_bytes(self) -> int:
        return self.slabs * self.slab_bytes

    def fits(self, length: int) -> bool:
        return 1 <= length <= self.slab_bytes

    def check(self, length: int) -> None:
        """Raises `PageTooLarge`, and ValueError for a page of no bytes."""
        if length < 1:
            raise ValueError(f"a page has at least one byte, not {length}")
        if not self.fits(length):
            raise PageTooLarge(f"a page of {length} bytes does not fit a slab of {self.slab_bytes}: raise slab_bytes")

    def allocate(self, length: int, count: int) -> array[int]:
        """Offsets of `count` free slots, or of all that the class and free slabs have. Raises as `check` does."""
        self.check(length)  # a slab that took the class of a longer page would have no slot to give back
        size = class_bytes(length)
        partial = self._partial.setdefault(size, {})
        offsets = array("q")
        while len(offsets) < count and (partial or self._free_slabs):
            if not partial:
                self._take_slab(size, partial)
            slab = next(iter(partial))
            self._take_slots(slab, size, count - len(offsets), offsets)
            if self._used[slab] == self.slab_bytes // size:
                del partial[slab]
        self.used_bytes += size * len(offsets)
        return offsets

    def free(self, offsets: Sequence[int]) -> None:
        """Give slots back."""
        at = 0
        while at < len(offsets):
            slab = offsets[at] // self.slab_bytes
            freed: Sequence[int] = offsets[at : at + len(self._cuts[slab])]
            if freed != self._cuts[slab]:  # not all of it at once
                freed = list(takewhile(lambda offset: offset // self.slab_bytes == slab, freed))  # noqa: B023 - called at once
            self._free(slab, self._class[slab], freed)
            at += len(freed)

    def slots(self, slab: int) -> Sequence[int]:
        """Offsets of every slot of a slab, in use or not."""
        return self._cuts[slab] if self._class[slab] else ()

    def used_slots(self, slab: int) -> int:
        return self._used[slab]

    def class_of(self, slab: int) -> int:
        """Slot size of a slab; 0 for a free one."""
        return self._class[slab]

    def _take_slab(self, size: int, partial: dict[int, None]) -> None:
        slab = self._free_slabs.pop()
        self._class[slab] = size
        self._fresh[slab] = self.slab_bytes // size
        partial[slab] = None
        if self._cut_for[slab] != size:
            start, self._cut_for[slab] = slab * self.slab_bytes, size
            self._cuts[slab] = array("q", range(start, start + self._fresh[slab] * size, size))

    def _take_slots(self, slab: int, size: int, count: int, offsets: array[int]) -> None:
        freed = self._freed[slab][-count:]
        del self._freed[slab][-count:]
        fresh = min(count - len(freed), self._fresh[slab])
        first = self.slab_bytes // size - self._fresh[slab]
        offsets.extend(freed)
        offsets.extend(self._cuts[slab][first : first + fresh])
        self._fresh[slab] -= fresh
        self._used[slab] += len(freed) + fresh

    def _free(self, slab: int, size: int, freed: Sequence[int]) -> None:
        self._used[slab] -= len(freed)
        self.used_bytes -= size * len(freed)
        self._partial[size][slab] = None
        if self._used[slab]:
            self._freed[slab].extend(freed)
        else:
            self._give_slab_back(slab, size)

    def _give_slab_back(self, slab: int, size: int) -> None:
        del self._partial[size][slab]
        self._class[slab] = 0
        self._fresh[slab] = 0
        self._freed[slab] = array("q")
        self._free_slabs.append(slab)
