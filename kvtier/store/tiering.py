"""How pages come into DRAM, go to SSD, come back and leave: the part of the store that others' bytes depend on.

A page is dropped from DRAM only when nothing holds it; one that must be forgotten while it is read is doomed, and its bytes
come back with the last hold. What `plan` asks for is held until it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from math import ceil

from kvtier.page.checksum import split_checksums
from kvtier.page.key import PageKey, PageKeys
from kvtier.page.kind import PageKind
from kvtier.page.status import Status
from kvtier.store.actions import Action, Promote
from kvtier.store.catalog import Catalog
from kvtier.store.counters import StoreCounters
from kvtier.store.dram_tier import DramTier
from kvtier.store.heat import NEVER, warmed
from kvtier.store.leases import Held
from kvtier.store.page import Page, SsdPlace
from kvtier.store.run import Run
from kvtier.store.settings import DemoteWhen, DramSettings, SsdSettings
from kvtier.store.slabs import SlabAllocator, class_bytes
from kvtier.store.ssd_tier import SsdTier
from kvtier.store.writes import Origin, Write, Writes

SELF = 0  # the owner of the agent's own writes and leases


class Tiering:
    """`now_ms` is the store's own clock, which never runs backwards."""

    def __init__(
        self, dram: DramSettings, ssd: SsdSettings | None, catalog: Catalog, counters: StoreCounters, clock: Callable[[], float]
    ) -> None:
        self.settings = dram
        slabs = SlabAllocator(dram.bytes, dram.slab_bytes)
        self.dram = DramTier(slabs, dram.eviction, self._evicted, self._cut, catalog.tell_apart)
        self.ssd = SsdTier(ssd, counters, catalog.left_ssd, self.unhold) if ssd else None
        self.writes = Writes(dram.pending_ttl_ms, dram.quarantine_ms)
        self._catalog = catalog
        self._counters = counters
        self._clock = clock
        self._next_generation = 1
        self._leaving_bytes = 0
        self._max_reading_bytes = min(ssd.max_reading_bytes, dram.bytes // 2) if ssd else 0
        self.starved = False  # something on SSD is wanted, and nothing moves, because all of DRAM is held

    def settle(self, write: Write, checksums: bytes) -> None:
        """The bytes of `write`, already taken from `writes`, are pages from now on."""
        if write.run is not None and not self._demotes_at_once:
            self._settle_run(write.run, checksums)
            return
        pages = self._pages(write, split_checksums(checksums))
        for index, known in enumerate(self._catalog.find(write.keys) if write.run is None else ()):
            if known is not None:
                pages[index] = self._computed_anew(known, pages[index])
        self._catalog.entered_dram(write.keys, pages)
        self.dram.settle(pages, write.offsets)
        if self._demotes_at_once:
            self._ssd.offer(pages, self._clock())

    def unhold_all(self, held: Iterable[Held]) -> None:
        """One reader less of each."""
        for page in held:
            if page.holds > 1 or page.doomed or page.leaving or not page.ticket:
                self.unhold(page)
            else:
                page.holds = 0  # evictable, unless it is pinned, and queued

    def unhold(self, page: Held) -> None:
        """One reader less."""
        if isinstance(page, Run):
            self._unhold_run(page)
            return
        page.holds -= 1
        if page.holds:
            if not page.demoting:
                self._stop_leaving(page)  # on SSD now, but someone reads it: it had better stay
        elif page.doomed:
            self._stop_leaving(page)
            self.dram.drop([page])
        elif self._stop_leaving(page) and page.evictable:
            self.dram.evict([page])
        else:
            self.dram.reconsider(page)

    def drop(self, page: Page) -> None:
        """Forget a page in every tier."""
        if page.place is not None and self.ssd is not None:
            self.ssd.forget(page)
        if not page.in_dram:
            return
        if page.holds:
            self._catalog.doom(page)
        else:
            self.dram.drop([page])
            self._catalog.left_dram([page])

    def drop_run(self, run: Run) -> None:
        """The same, of a run that nobody holds."""
        self._catalog.run_left(run, self.dram.drop_run(run))

    def want(self, page: Page) -> bool:
        """Bring a page that is on SSD alone into DRAM; False where too many are wanted, or it is being written there anyway."""
        return self.ssd is not None and not self.writes.writing(page.key) and self.ssd.want(page)

    def under_way(self, key: PageKey) -> bool:
        """Whether a page is wanted or being written into DRAM."""
        return self.writes.writing(key) or (self.ssd is not None and key in self.ssd.wanted)

    def trim(self) -> None:
        """Above the high watermark, let the least worthy pages leave until the low one is reached."""
        capacity = self.dram.slabs.capacity_bytes
        if self.dram.slabs.used_bytes - self._leaving_bytes <= self.settings.high_watermark * capacity:
            return
        while (surplus := self.dram.slabs.used_bytes - self._leaving_bytes - self.settings.low_watermark * capacity) > 0:
            run = self.dram.coldest_run() if self.ssd is None else None
            if run is not None:
                self.dram.evict_tail(run, ceil(surplus / class_bytes(run.length)))
                continue
            page = self.dram.coldest()
            if page is None:
                return
            self._let_go(page)

    def plan(self) -> list[Action]:
        if self.ssd is None:
            return []
        clears = self.ssd.clears(self._clock())
        if clears is not None:
            return [*self._promotions(self.ssd), *clears]
        return [*self._promotions(self.ssd), *self.ssd.demotions(), *self.ssd.reclaims()]

    def cleared(self) -> None:
        """A clear is noted on SSD."""
        self._ssd.cleared()

    def clear_failed(self) -> None:
        self._ssd.clear_failed(self._clock())

    def demoted(self, generation: int, place: SsdPlace) -> None:
        page = self._ssd.written(generation)
        if page is None:
            return
        if not page.doomed:
            self._counters.demoted += 1
            self._catalog.entered_ssd(page, place)
            self._ssd.placed(page)
        self.unhold(page)

    def demotion_failed(self, generation: int, status: Status) -> None:
        """BUSY: the device is full. CORRUPT: the bytes in DRAM are wrong. Anything else: writing failed."""
        page = self._ssd.written(generation)
        if status is Status.BUSY:
            self._ssd.device_full(self._clock())
        if page is None:
            return
        self._counters.demotions_failed += 1
        if status is Status.CORRUPT and not page.doomed:
            self._counters.corrupt_dram += 1
            self.drop(page)
        self.unhold(page)

    def promoted(self, write_id: int) -> None:
        write = self._read(write_id)
        page = self._sought(write)
        if write is not None and page is not None:
            self._counters.promoted += 1
            self.settle(write, page.checksum)
        elif write is not None:
            self.dram.unclaim(write.offsets)

    def promotion_failed(self, write_id: int, status: Status) -> None:
        """CORRUPT: the bytes on SSD are wrong, and the page is dropped. Else it stays there."""
        write = self._read(write_id)
        if write is None:
            return
        self.dram.unclaim(write.offsets)
        self._counters.promotions_failed += 1
        page = self._sought(write)
        if status is Status.CORRUPT and page is not None and page.place is not None:
            self._counters.corrupt_ssd += 1
            self._ssd.forget(page)

    def kept(self, key: PageKey, segment: int, place: SsdPlace) -> None:
        """A page of a segment that is being reclaimed was written anew."""
        page = self._catalog.get(key)
        if page is not None and page.place is not None and page.place.segment == segment:
            self._counters.ssd_kept += 1
            self._ssd.moved(page)
            page.place = place
            self._ssd.placed(page)

    def keep_failed(self, key: PageKey, segment: int, status: Status) -> None:
        page = self._catalog.get(key)
        if page is not None and page.place is not None and page.place.segment == segment:
            self._counters.corrupt_ssd += status is Status.CORRUPT
            self._counters.ssd_forgotten += 1
            self._ssd.forget(page)

    def reclaimed(self, segment: int) -> None:
        """The segment is no more."""
        self._ssd.reclaimed(segment)

    def recover(self, key: PageKey, length: int, checksum: bytes, kind: PageKind, depth: int, place: SsdPlace) -> None:
        """A page found on SSD at start; of two with one key the later place counts. Its space must be known.

        One that no slab can hold, or whose id is another's, is not taken in; its segment is reclaimed in time.
        """
        old = self._catalog.get(key)
        if old is not None:
            self._counters.recovered -= 1
            self._ssd.forget(old)
        if not self._catalog.has_room_for(key):
            self._ssd.found(place.segment)
            return
        if not self.dram.slabs.fits(length):
            self._counters.recovered_too_large += 1
            self._ssd.found(place.segment)
            return
        self._counters.recovered += 1
        page = Page(key, length, checksum, self._catalog.journals.page_tokens(key), kind, depth, last_ms=self._clock())
        self._catalog.entered_ssd(page, place)
        self._ssd.placed(page)

    @property
    def _ssd(self) -> SsdTier:
        assert self.ssd is not None, "only a store with an SSD plans what is reported here"
        return self.ssd

    def _promotions(self, ssd: SsdTier) -> list[Action]:
        actions: list[Action] = []
        self.starved = False
        while ssd.wanted and (ssd.reading_bytes < self._max_reading_bytes or not ssd.reading_bytes):
            key = next(iter(ssd.wanted))
            page = self._catalog.get(key)
            if page is None or page.in_dram or page.place is None or self.writes.writing(key):
                del ssd.wanted[key]
                continue
            if ssd.segments[page.place.segment].reclaiming:
                break  # it is being moved; then it can be read
            action = self._promotion(ssd, page, page.place)
            if action is None:
                self._counters.no_room += 1
                self.starved = not ssd.reading_bytes
                break
            del ssd.wanted[key]
            actions.append(action)
        return actions

    def _promotion(self, ssd: SsdTier, page: Page, place: SsdPlace) -> Promote | None:
        offsets = self.dram.allocate(page.length, 1)
        if not offsets:
            return None
        keys, now_ms = PageKeys.of([page.key]), self._clock()
        write = self.writes.begin(SELF, keys, page.length, offsets, page.kind, [page.depth], Origin.SSD, now_ms)
        ssd.reading(write.id, page)
        return Promote(write.id, page.key, place, offsets[0], page.length, page.checksum)

    @property
    def _demotes_at_once(self) -> bool:
        return self.ssd is not None and self.ssd.settings.demote is DemoteWhen.COMMIT

    def _settle_run(self, run: Run, checksums: bytes) -> None:
        run.checksums = checksums
        run.tokens = self._catalog.journals.page_tokens(run.keys[0])
        run.generation = self._generations(len(run)).start
        run.last_ms = self._clock()
        run.heat = warmed(NEVER, run.last_ms, self.settings.heat_half_life_ms)
        self._catalog.run_entered(run)
        self.dram.settle_run(run)

    def _generations(self, count: int) -> range:
        generations = range(self._next_generation, self._next_generation + count)
        self._next_generation = generations.stop
        return generations

    def _pages(self, write: Write, checksums: Sequence[bytes]) -> list[Page]:
        """Those of a write, as they would be if they were here for the first time."""
        now_ms = self._clock()
        return list(
            map(
                Page,
                write.keys,
                repeat(write.length),
                checksums,
                repeat(self._catalog.journals.page_tokens(write.keys[0])),
                repeat(write.kind),
                write.depths,
                write.offsets,
                self._generations(len(write.keys)),
                repeat(now_ms),
                repeat(warmed(NEVER, now_ms, self.settings.heat_half_life_ms)),
            )
        )

    def _computed_anew(self, known: Page, fresh: Page) -> Page:
        """The page that was on SSD alone and is in DRAM now: with other rounding what is on SSD is another page."""
        if (known.checksum, known.length) != (fresh.checksum, fresh.length):
            self._ssd.forget(known)
            return fresh
        known.offset, known.generation, known.last_ms = fresh.offset, fresh.generation, fresh.last_ms
        known.heat = warmed(known.heat, fresh.last_ms, self.settings.heat_half_life_ms)
        return known

    def _read(self, write_id: int) -> Write | None:
        write = self.writes.take(write_id, SELF)
        if write is not None:
            self._ssd.read(write_id)
        return write

    def _sought(self, write: Write | None) -> Page | None:
        """The page that was read for a write; None where it was forgotten meanwhile, though another may have its key now."""
        return self._catalog.get(write.keys[0]) if write is not None and not write.void else None

    def _unhold_run(self, run: Run) -> None:
        if run.pages is not None:  # told apart since it was held
            self.unhold_all(run.pages)
            return
        run.holds -= 1
        self.dram.reconsider(run)

    def _let_go(self, page: Page) -> None:
        """A page that is worth least: to SSD first if it may, else out."""
        if self.ssd is None or not (page.demoting or self.ssd.admits(page, self._clock())):
            self.dram.evict([page])
            return
        if not page.demoting:
            self.ssd.enqueue(page)
        page.leaving = True
        page.holds += 1
        self._leaving_bytes += class_bytes(page.length)

    def _stop_leaving(self, page: Page) -> bool:
        """Whether it was leaving."""
        was = page.leaving
        if was:
            page.leaving = False
            self._leaving_bytes -= class_bytes(page.length)
        return was

    def _evicted(self, pages: Sequence[Page]) -> None:
        self._counters.evicted += len(pages)
        self._counters.lost += sum(page.place is None for page in pages)
        self._catalog.left_dram(pages)

    def _cut(self, run: Run, keys: PageKeys) -> None:
        self._counters.evicted += len(keys)
        self._counters.lost += len(keys)
        self._catalog.run_left(run, keys)
