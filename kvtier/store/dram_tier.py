"""DRAM of one node: who gets bytes, and who must go for it.

A page of a class takes the place of its own class's least worthy page, unless other classes hold colder ones: then, now and
then, a whole slab of theirs changes class. Held and pinned pages never go. Knows no keys and no SSD: what becomes of a victim
is the caller's to say, through `on_evict`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import floordiv

from kvtier.page.key import PageKeys
from kvtier.policies.eviction import EvictionPolicy, Worth
from kvtier.store.page import NOWHERE, Page
from kvtier.store.run import Run
from kvtier.store.slabs import SlabAllocator, class_bytes
from kvtier.store.victims import Victim, VictimQueue


class DramTier:
    """`length` is that of a page, everywhere. `on_evict(pages)` is called with pages whose bytes have just been given back,
    `on_cut(run, keys)` with those that a run has lost; `tell_apart(run)` is to end in `told_apart`.
    """

    def __init__(
        self,
        slabs: SlabAllocator,
        policy: EvictionPolicy,
        on_evict: Callable[[Sequence[Page]], None],
        on_cut: Callable[[Run, PageKeys], None],
        tell_apart: Callable[[Run], object],
    ) -> None:
        self.slabs = slabs
        self._victims = VictimQueue(policy)
        self._on_evict = on_evict
        self._on_cut = on_cut
        self._tell_apart = tell_apart
        # Every page with bytes, also doomed ones: class -> offset / class -> page. (Offsets are multiples of large powers of
        # two, all of which fall on few places of a hash table.)
        self._at: dict[int, dict[int, Page]] = {}
        self._runs: dict[Run, None] = {}
        self._evictions_of: dict[int, int] = {}  # class -> since it last looked at other classes

    def allocate(self, length: int, count: int) -> array[int]:
        """Claimed bytes for `count` pages that are about to be written; for fewer if all that could go is held."""
        offsets = self.slabs.allocate(length, count)
        size = class_bytes(length)
        while (missing := count - len(offsets)) and self._make_room(size, missing):
            offsets += self.slabs.allocate(length, missing)
        return offsets

    def settle(self, pages: Sequence[Page], offsets: Sequence[int]) -> None:
        """The claimed bytes at their offsets are these pages', all of one length."""
        size = class_bytes(pages[0].length)
        self._at.setdefault(size, {}).update(zip([offset // size for offset in offsets], pages, strict=True))
        self._victims.push([page for page in pages if not page.ticket])

    def settle_run(self, run: Run) -> None:
        """The claimed bytes at its offsets are its own."""
        self._runs[run] = None
        self._victims.push([run])

    def told_apart(self, run: Run) -> None:
        """Its pages go on for themselves."""
        assert run.pages is not None
        del self._runs[run]
        self._victims.forget(run)
        self.settle(run.pages, run.offsets)

    def residents(self) -> Iterator[Victim]:
        """All that have bytes."""
        yield from self._runs
        for pages in self._at.values():
            yield from pages.values()

    def unclaim(self, offsets: Sequence[int]) -> None:
        """Give claimed bytes back."""
        self.slabs.free(offsets)

    def reconsider(self, page: Victim) -> None:
        """A hold or a pin has gone."""
        if page.evictable and not page.ticket:
            self._victims.push([page])

    def reweigh(self, page: Page) -> None:
        """Its worth was changed otherwise than by a touch."""
        self._victims.forget(page)
        self.reconsider(page)

    def tidy(self) -> None:
        """Do what can wait."""
        self._victims.take_in()

    def coldest_run(self) -> Run | None:
        """The least worthy of all that can go, if it is a run; it stays where it is."""
        victim = self._victims.coldest()
        return victim if isinstance(victim, Run) else None

    def coldest(self) -> Page | None:
        """The least worthy page of all that can go, out of the queue; pass it to `drop`, or to `reconsider` later."""
        while isinstance(victim := self._victims.coldest(), Run):
            self._tell_apart(victim)
        return self._victims.pop(class_bytes(victim.length), 1)[0] if victim is not None else None

    def coldest_pages(self, size: int) -> list[Page]:
        """The least worthy pages of all that can go, up to `size` bytes; they stay where they are."""
        pages: list[Page] = []
        while size > 0 and (page := self.coldest()) is not None:
            pages.append(page)
            size -= page.length
        for page in pages:
            self.reconsider(page)
        return pages

    def drop(self, pages: Sequence[Page]) -> None:
        """Give pages' bytes back without asking. They must not be held."""
        self.slabs.free([page.offset for page in pages])
        for page in pages:
            assert not page.holds, "bytes that someone reads are never given back"
            if page.ticket:
                self._victims.forget(page)
            size = class_bytes(page.length)
            del self._at[size][page.offset // size]
            page.offset = NOWHERE

    def evict(self, pages: Sequence[Page]) -> None:
        self.drop(pages)
        self._on_evict(pages)

    def drop_run(self, run: Run) -> PageKeys:
        """As `drop`, of all that it has; their keys."""
        return self._drop_tail(run, len(run))

    def evict_tail(self, run: Run, count: int) -> int:
        """The last pages of a run, `count` at most; how many."""
        keys = self._drop_tail(run, min(count, len(run)))
        self._on_cut(run, keys)
        return len(keys)

    def _drop_tail(self, run: Run, count: int) -> PageKeys:
        assert run.evictable, "bytes that someone reads are never given back"
        keys, offsets = run.cut(count)
        self.slabs.free(offsets)
        if run.offsets:
            self._victims.push([run])  # what is left may be worth more, or less
        else:
            self._victims.forget(run)
            del self._runs[run]
        return keys

    def _make_room(self, size: int, count: int) -> bool:
        """For at least one page of a class, and not for many more than `count`; whether any bytes were given back."""
        return self._take_colder_slab(size) or self._evict(size, count) or self._take_any_slab(size)

    def _evict(self, size: int, count: int) -> bool:
        """Up to `count` pages of a class: of a run all of them, of others until it is time to look at the other classes."""
        before = self._evictions_of.get(size, 0)
        victim = self._victims.peek(size)
        if isinstance(victim, Run):
            evicted = self.evict_tail(victim, count)
        else:
            pages = self._victims.pop(size, min(count, self.slabs.slab_bytes // size - before))
            self.evict(pages)
            evicted = len(pages)
        self._evictions_of[size] = before + evicted
        return bool(evicted)

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
        runs = self._slots_of_runs(size)
        for slab in range(self.slabs.slabs):
            if self.slabs.class_of(slab) in (0, size):
                continue
            worth = self._slab_worth(slab, runs.get(slab, {}), below)
            if worth is not None:
                chosen, below = slab, worth
        if chosen is None:
            return False
        for run in runs.get(chosen, ()):
            self._tell_apart(run)
        self.evict(self._pages_of(chosen))
        return True

    def _slots_of_runs(self, size: int) -> dict[int, dict[Run, int]]:
        """How many slots of each slab runs of other classes have."""
        slots: dict[int, dict[Run, int]] = {}
        for run in self._runs:
            if class_bytes(run.length) != size:
                for slab, count in Counter(map(floordiv, run.offsets, repeat(self.slabs.slab_bytes))).items():
                    slots.setdefault(slab, {})[run] = count
        return slots

    def _pages_of(self, slab: int) -> list[Page]:
        size = self.slabs.class_of(slab)
        at = self._at.get(size, {})
        return [page for offset in self.slabs.slots(slab) if (page := at.get(offset // size)) is not None]

    def _slab_worth(self, slab: int, runs: dict[Run, int], below: Worth | None) -> Worth | None:
        """Of the best that lies there, with `runs` and their slots; None if that is not `below`, or if any of it must stay."""
        best: Worth | None = None
        pages = self._pages_of(slab)
        if len(pages) + sum(runs.values()) < self.slabs.used_slots(slab):
            return None  # others are being written
        victims: list[Victim] = [*runs, *pages]
        for victim in victims:
            if not victim.evictable:
                return None
            worth = self._victims.worth(victim)
            if below is not None and worth >= below:
                return None
            best = worth if best is None else max(best, worth)
        return best
