"""DRAM of one node: who gets bytes, and who must go for it.

A page of a class takes the place of its own class's least worthy page, unless other classes hold colder ones: then, now and
then, a whole slab of theirs changes class. Held and pinned pages never go. Knows no keys and no SSD: what becomes of a victim
is the caller's to say, through `on_evict`.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtier.policies.eviction import EvictionPolicy, Worth
from kvtier.store.page import NOWHERE, Page
from kvtier.store.slabs import SlabAllocator, class_bytes
from kvtier.store.victims import VictimQueue


class DramTier:
    """`on_evict(page)` is called with a page whose bytes have just been given back."""

    def __init__(self, slabs: SlabAllocator, policy: EvictionPolicy, on_evict: Callable[[Page], None]) -> None:
        self.slabs = slabs
        self._victims = VictimQueue(policy)
        self._on_evict = on_evict
        self._at: dict[int, Page] = {}  # every page with bytes, also doomed ones
        self._claims: set[int] = set()  # offsets of puts that are being written
        self._evictions_of: dict[int, int] = {}  # class -> since it last looked at other classes

    @property
    def used_share(self) -> float:
        return self.slabs.used_bytes / self.slabs.capacity_bytes

    def allocate(self, length: int) -> int | None:
        """Claimed bytes for a page that is about to be written; None if all that could go is held."""
        offset = self.slabs.allocate(length)
        size = class_bytes(length) if offset is None else 0
        while offset is None and (self._take_colder_slab(size) or self._evict_one(size) or self._take_any_slab(size)):
            offset = self.slabs.allocate(length)
        if offset is not None:
            self._claims.add(offset)
        return offset

    def settle(self, page: Page) -> None:
        """The claimed bytes at `page.offset` are that page's."""
        self._claims.discard(page.offset)
        self._at[page.offset] = page
        self.reconsider(page)

    def unclaim(self, offset: int) -> None:
        """Give claimed bytes back."""
        self._claims.discard(offset)
        self.slabs.free(offset)

    def reconsider(self, page: Page) -> None:
        """A hold or a pin has gone."""
        if page.evictable and not page.ticket:
            self._victims.push(page)

    def reweigh(self, page: Page) -> None:
        """Its worth was changed otherwise than by a touch."""
        self._victims.forget(page)
        self.reconsider(page)

    def coldest(self) -> Page | None:
        """The least worthy page of all that can go, out of the queue; pass it to `drop`, or to `reconsider` later."""
        return self._victims.pop_coldest()

    def coldest_pages(self, size: int) -> list[Page]:
        """The least worthy pages of all that can go, up to `size` bytes; they stay where they are."""
        pages: list[Page] = []
        while size > 0 and (page := self._victims.pop_coldest()) is not None:
            pages.append(page)
            size -= page.length
        for page in pages:
            self.reconsider(page)
        return pages

    def drop(self, page: Page) -> None:
        """Give a page's bytes back without asking. It must not be held."""
        assert not page.holds, "bytes that someone reads are never given back"
        self._victims.forget(page)
        del self._at[page.offset]
        self.slabs.free(page.offset)
        page.offset = NOWHERE

    def evict(self, page: Page) -> None:
        self.drop(page)
        self._on_evict(page)

    def _evict_one(self, size: int) -> bool:
        page = self._victims.pop(size)
        if page is None:
            return False
        self._evictions_of[size] = self._evictions_of.get(size, 0) + 1
        self.evict(page)
        return True

    def _take_colder_slab(self, size: int) -> bool:
        """Once in as many evictions as a slab has slots: a slab of others whose best page is worth less than our worst."""
        if self._evictions_of.get(size, 0) < self.slabs.slab_bytes // size:
            return False
        self._evictions_of[size] = 0
        own = self._victims.peek(size)
        return own is not None and self._take_slab(size, self._victims.worth(own))

    def _take_any_slab(self, size: int) -> bool:
        """The class has nothing that can go: the least worthy slab of the others."""
        return self._take_slab(size, None)

    def _take_slab(self, size: int, below: Worth | None) -> bool:
        """The least worthy slab of other classes, if it is worth less than `below`."""
        chosen: int | None = None
        for slab in range(self.slabs.slabs):
            if self.slabs.class_of(slab) in (0, size):
                continue
            worth = self._slab_worth(slab, below)
            if worth is not None:
                chosen, below = slab, worth
        if chosen is None:
            return False
        for offset in list(self.slabs.slots(chosen)):
            if offset in self._at:
                self.evict(self._at[offset])
        return True

    def _slab_worth(self, slab: int, below: Worth | None) -> Worth | None:
        """Of its best page; None if that is not `below`, or if any of them must stay."""
        best: Worth | None = None
        for offset in self.slabs.slots(slab):
            if offset in self._claims:
                return None
            page = self._at.get(offset)
            if page is None:
                continue
            if not page.evictable:
                return None
            worth = self._victims.worth(page)
            if below is not None and worth >= below:
                return None
            best = worth if best is None else max(best, worth)
        return best
