"""SSD of one node: what is written, what is read back, and which segment makes room.

Segments are append-only; a page's bytes die with its segment. When segments run short the one with the fewest living bytes is
reclaimed: what was read or pinned since it was written is moved, the rest is forgotten. Decides only; bytes are moved by
whoever gets the actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from kvtier.page.key import PageKey
from kvtier.store.actions import Clear, Demote, Demotion, Keep, Reclaim
from kvtier.store.counters import StoreCounters
from kvtier.store.page import Page
from kvtier.store.settings import SsdSettings


class Segment(msgspec.Struct):
    """What lives in one segment file."""

    id: int
    live: dict[PageKey, Page]
    live_bytes: int = 0
    reads: int = 0  # promotions under way from it
    reclaiming: bool = False


class SsdTier:
    """`on_forget(page)` is called for a page that is on SSD no more, `on_unhold(page)` for one not written after all."""

    def __init__(
        self,
        settings: SsdSettings,
        counters: StoreCounters,
        on_forget: Callable[[Page], None],
        on_unhold: Callable[[Page], None],
    ) -> None:
        self.settings = settings
        self.max_segments = settings.bytes // settings.segment_bytes
        self.segments: dict[int, Segment] = {}
        self.wanted: dict[PageKey, None] = {}  # to be read into DRAM, in order
        self.reading_bytes = 0
        self._counters = counters
        self._on_forget = on_forget
        self._on_unhold = on_unhold
        self._queue: deque[Page] = deque()  # to be written
        self._writing: dict[int, Page] = {}  # by generation
        self._writing_bytes = 0
        self._reading: dict[int, tuple[Segment, int]] = {}  # by write
        self._full_until_ms = 0.0
        self._to_clear: dict[bytes, None] = {}  # spaces, to be noted
        self._clearing: tuple[bytes, ...] = ()  # being noted
        self._clear_from_ms = 0.0

    @property
    def live_bytes(self) -> int:
        return sum(segment.live_bytes for segment in self.segments.values())

    @property
    def unwritten_pages(self) -> int:
        """Queued or being written."""
        return len(self._queue) + len(self._writing)

    def admits(self, page: Page, now_ms: float) -> bool:
        """Whether `page` should be written and can be queued now."""
        if page.place is not None or not self.settings.admission.admits(page):
            return False
        if now_ms < self._full_until_ms or len(self._queue) >= self.settings.max_queued_pages:
            self._counters.demotions_skipped += 1
            return False
        return True

    def offer(self, pages: Iterable[Page], now_ms: float) -> None:
        """Write what is admitted of them."""
        for page in pages:
            if self.admits(page, now_ms):
                self.enqueue(page)

    def enqueue(self, page: Page) -> None:
        """Write it when its turn comes, if it is still in DRAM then."""
        page.demoting = True
        self._queue.append(page)

    def demotions(self) -> list[Demote]:
        """What to write next: batches, as long as not too much is being written."""
        actions = []
        while self._queue and self._writing_bytes < self.settings.max_writing_bytes:
            batch = self._batch()
            if batch:
                self._writing.update((page.generation, page) for page in batch)
                self._writing_bytes += sum(page.length for page in batch)
                actions.append(Demote(tuple(map(_demotion, batch))))
        return actions

    def written(self, generation: int) -> Page | None:
        """The page whose demotion has ended, well or not; its hold is the caller's to release."""
        page = self._writing.pop(generation, None)
        if page is not None:
            self._writing_bytes -= page.length
            page.demoting = False
        return page

    @property
    def clears_open(self) -> bool:
        """Whether a clear has not been noted yet."""
        return bool(self._to_clear or self._clearing)

    def clear(self, space: bytes) -> None:
        """Its pages were forgotten; the next life has to know."""
        self._to_clear[space] = None

    def clears(self, now_ms: float) -> list[Clear] | None:
        """None where there is nothing to note. Else nothing may be written before it has been: what is being written now is
        to lie before the note, what comes later behind it."""
        if self._clearing:
            return []
        if not self._to_clear or now_ms < self._clear_from_ms:
            return None
        if self._writing or any(segment.reclaiming for segment in self.segments.values()):
            return []
        self._clearing, self._to_clear = tuple(self._to_clear), {}
        return [Clear(self._clearing)]

    def cleared(self) -> None:
        """It was noted."""
        self._clearing = ()

    def clear_failed(self, now_ms: float) -> None:
        """It could not be noted. Try again when a full device is."""
        self._to_clear = dict.fromkeys((*self._clearing, *self._to_clear))
        self._clearing = ()
        self._clear_from_ms = now_ms + self.settings.full_backoff_ms

    def device_full(self, now_ms: float) -> None:
        """Write nothing for a while, and make do with the segments there are: the device holds less than its settings say."""
        self._full_until_ms = now_ms + self.settings.full_backoff_ms
        self.max_segments = max(2, min(self.max_segments, len(self.segments)))
        while self._queue:
            self._counters.demotions_skipped += 1
            self._skip(self._queue.popleft())

    def want(self, page: Page) -> bool:
        """Read it into DRAM soon; False where too many are to be."""
        if room := len(self.wanted) < self.settings.max_wanted_pages:
            self.wanted[page.key] = None
        return room

    def reading(self, write_id: int, page: Page) -> None:
        """A promotion is under way: its segment must stay."""
        assert page.place is not None
        segment = self.segments[page.place.segment]
        segment.reads += 1
        self.reading_bytes += page.length
        self._reading[write_id] = (segment, page.length)
        page.read_since_written = True

    def read(self, write_id: int) -> None:
        """It has ended, well or not."""
        segment, length = self._reading.pop(write_id)
        segment.reads -= 1
        self.reading_bytes -= length

    def found(self, segment_id: int) -> Segment:
        """A segment that is on the device, whether or not anything lives in it."""
        return self.segments.setdefault(segment_id, Segment(segment_id, {}))

    def placed(self, page: Page) -> None:
        """The page now lives at `page.place`."""
        assert page.place is not None
        segment = self.found(page.place.segment)
        segment.live[page.key] = page
        segment.live_bytes += page.length
        page.read_since_written = False

    def forget(self, page: Page) -> None:
        """The page's bytes on SSD are worth nothing any more."""
        self._unplace(page)
        self._on_forget(page)

    def moved(self, page: Page) -> None:
        """Take it out of its old segment, before it is placed in another."""
        self._unplace(page)

    def reclaims(self) -> list[Reclaim]:
        """At most one reclaim, when segments run short or one has died out."""
        if any(segment.reclaiming for segment in self.segments.values()):
            return []
        newest = max(self.segments, default=0)
        able = [segment for segment in self.segments.values() if segment.id != newest and not segment.reads]
        if not able:
            return []
        victim = min(able, key=lambda segment: (segment.live_bytes, segment.id))
        if victim.live and len(self.segments) < self.max_segments - 1:
            return []
        return [self._reclaim(victim)]

    def reclaimed(self, segment_id: int) -> None:
        segment = self.segments.pop(segment_id)
        for page in list(segment.live.values()):
            self._on_forget(page)

    def _batch(self) -> list[Page]:
        batch: list[Page] = []
        size = 0
        while self._queue and size < self.settings.batch_bytes:
            page = self._queue.popleft()
            if page.doomed or not page.in_dram or page.place is not None:
                self._skip(page)  # it went, or was written, while it waited
                continue
            page.holds += not page.leaving  # a leaving one is held since it was queued
            batch.append(page)
            size += page.length
        return batch

    def _skip(self, page: Page) -> None:
        page.demoting = False
        if page.leaving:  # then it was held
            self._on_unhold(page)

    def _reclaim(self, segment: Segment) -> Reclaim:
        segment.reclaiming = True
        keep = self._worth_keeping(segment)
        kept = {page.key for page in keep}
        for page in [page for page in segment.live.values() if page.key not in kept]:
            self._counters.ssd_forgotten += 1
            self.forget(page)
        return Reclaim(segment.id, tuple(map(_keep, keep)))

    def _worth_keeping(self, segment: Segment) -> list[Page]:
        """Pinned pages first, then the hottest of those read since they were written, up to the kept share."""
        pages = [page for page in segment.live.values() if page.pins or page.read_since_written]
        pages.sort(key=lambda page: (-page.pins, -page.heat, page.depth))
        budget = int(self.settings.segment_bytes * self.settings.max_kept_share)
        keep = []
        for page in pages:
            budget -= page.length
            if budget < 0:
                break
            keep.append(page)
        return keep

    def _unplace(self, page: Page) -> None:
        assert page.place is not None
        segment = self.segments.get(page.place.segment)
        if segment is not None and segment.live.pop(page.key, None) is not None:
            segment.live_bytes -= page.length


def _demotion(page: Page) -> Demotion:
    return Demotion(page.key, page.generation, page.offset, page.length, page.checksum, page.kind, page.depth)


def _keep(page: Page) -> Keep:
    assert page.place is not None
    return Keep(page.key, page.place, page.length, page.checksum, page.kind, page.depth)
