"""One node's share of L3 and L4, as what may be asked of it: look up, lease, write, pin, tag.

A pure state machine. Callers move the bytes: what is leased may be read at `page.offset`, what is reserved may be written, and
`tiering` says what should go to SSD or come from it. Time is passed in and never believed to run backwards. An answer is never
MISS while a page is being written or can be read from SSD.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.key import PageKey, PageKeys, id_of
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.store.actions import Action
from kvtier.store.answers import Acquired, Leading, Pinned, Reserved
from kvtier.store.catalog import Catalog
from kvtier.store.counters import StoreCounters
from kvtier.store.gathering import Gathering
from kvtier.store.heat import NEVER, warmed
from kvtier.store.journal import Journals
from kvtier.store.leases import Held, Lease, Leases
from kvtier.store.page import NOWHERE, Page
from kvtier.store.pins import Pin, Pins
from kvtier.store.run import Run
from kvtier.store.settings import DramSettings, SsdSettings
from kvtier.store.tiering import Tiering
from kvtier.store.writes import Origin

_MAX_RECENT = 16_384


class NodeStore:
    """One thread. Owners are numbers that the caller gives its connections, from 1 on; 0 is the agent itself."""

    def __init__(self, dram: DramSettings, ssd: SsdSettings | None, epoch: int) -> None:
        self.settings = dram
        self.counters = StoreCounters()
        self.journals = Journals(epoch)
        self.catalog = Catalog(self.journals, lambda run: self.tiering.dram.told_apart(run))
        self.tiering = Tiering(dram, ssd, self.catalog, self.counters, lambda: self._now_ms)
        self._leases = Leases()
        self._pins = Pins(int(dram.bytes * dram.max_pinned_share))
        self._recent: list[Sequence[PageKey]] = []
        self._recent_pages = 0
        self._now_ms = 0.0

    def meet(self, space: PageSpace) -> bytes:
        """Make a space known; the digest its keys begin with."""
        return self.journals.meet(space)

    def leading(self, keys: Sequence[PageKey], now_ms: float) -> Leading:
        """How much of a prompt lies here. What is found leaves later for it, and what is on SSD is sent for.

        No more is sent for than half of DRAM: the rest of a longer prompt would push out its beginning.
        """
        self._pass_time(now_ms)
        dram, at = len(keys), 0
        room = self.settings.bytes // 2
        for part in self.catalog.parts(PageKeys.of(keys)):
            if part is None:
                return Leading(min(dram, at), at)
            part.last_ms = self._now_ms
            if isinstance(part, Run):
                at += len(part)
                continue
            if part.offset == NOWHERE:
                dram = min(dram, at)
                room -= part.length
                if room >= 0:
                    self.tiering.want(part)
            at += 1
        return Leading(dram, len(keys))

    def resident(self, keys: Sequence[PageKey]) -> int:
        """Pages in DRAM, from the first on. Nothing is sent for: one who asks again and again changes nothing."""
        at = 0
        for part in self.catalog.parts(PageKeys.of(keys)):
            if part is None or (isinstance(part, Page) and part.offset == NOWHERE):
                return at
            at += len(part) if isinstance(part, Run) else 1
        return at

    def acquire(self, keys: Sequence[PageKey], owner: int, ttl_ms: float, now_ms: float) -> Acquired:
        """Lease those of `keys`, of one space, that lie in DRAM, in one lease."""
        self._pass_time(now_ms)
        answer = Acquired(0, [Status.OK] * len(keys), [], {}, self.settings.retry_after_ms)
        held, at = answer.held, 0
        for part in self.catalog.parts(PageKeys.of(keys)):
            if isinstance(part, Run):
                held.append(part)
                at += len(part)
                continue
            if part is None or part.offset == NOWHERE:
                answer.statuses[at] = self._absent(at, keys[at], part, answer.moved)
            else:
                held.append(part)
            at += 1
        return self._leased(answer, owner, ttl_ms) if held else answer

    def lacks_any(self, keys: Sequence[PageKey]) -> bool:
        """Whether any of `keys` is not in DRAM."""
        parts = self.catalog.parts(PageKeys.of(keys))
        return any(part is None or (isinstance(part, Page) and part.offset == NOWHERE) for part in parts)

    def gather(self, keys: Sequence[PageKey], gathering: Gathering, room_bytes: float = inf) -> bool:
        """Send for what is on SSD and hold what is in DRAM, so that what still comes does not push out what has come.

        Whether any of `keys` is on its way. What is held and on its way grows by up to `room_bytes`, from the first key on;
        give the gathering to `let_go` in the end.
        """
        room_bytes += gathering.coming_bytes
        coming, gathering.coming_bytes = False, 0
        pages = self.catalog.find(keys) if isinstance(keys, PageKeys) else map(self.catalog.get, keys)
        for key, page in zip(keys, pages, strict=True):
            if page is None:
                coming = coming or self.tiering.writes.writing(key)
                continue
            fits = page.length <= room_bytes
            if page.in_dram and fits and page.generation not in gathering.held:
                room_bytes -= page.length
                page.holds += 1
                gathering.held[page.generation] = page
            elif not page.in_dram and self._send_for(page, gathering, fits=fits):
                room_bytes -= page.length
                gathering.coming_bytes += page.length
        return coming or gathering.coming_bytes > 0

    def let_go(self, gathering: Gathering) -> None:
        """What `gather` held is held no more."""
        self.tiering.unhold_all(gathering.held.values())
        gathering.held.clear()
        gathering.coming_bytes = 0

    def take_recent_hits(self) -> list[Page]:
        """Pages in DRAM that were read since the last call, the first `_MAX_RECENT` of them."""
        recent, self._recent, self._recent_pages = self._recent, [], 0
        keys = dict.fromkeys(chain.from_iterable(recent))
        return [page for key in keys if (page := self.catalog.get(key)) is not None and page.in_dram]

    def leased_pages(self, lease_id: int, owner: int) -> list[Page] | None:
        """What a running lease covers, in the order of its keys; None for one that has ended."""
        lease = self._leases.get(lease_id, owner)
        if lease is None:
            return None
        pages: list[Page] = []
        for held in lease.held:
            pages += self.catalog.tell_apart(held) if isinstance(held, Run) else (held,)
        lease.held = pages
        return pages

    def renew(self, lease_id: int, owner: int, ttl_ms: float, now_ms: float) -> bool:
        """False for a lease that has ended: what was read under it since may be anything."""
        self._pass_time(now_ms)
        self._end_leases()
        return self._leases.renew(lease_id, owner, self._lease_end_ms(ttl_ms))

    def release(self, lease_id: int, owner: int) -> Lease | None:
        """The lease as it was; None for one that had ended."""
        lease = self._leases.end(lease_id, owner)
        if lease is not None:
            self.tiering.unhold_all(lease.held)
        return lease

    def reserve(
        self,
        keys: Sequence[PageKey],
        length: int,
        owner: int,
        now_ms: float,
        *,
        depth: int = 0,
        kind: PageKind = PageKind.USER_QUERY,
        origin: Origin = Origin.CLIENT,
    ) -> Reserved:
        """Claim bytes for pages `depth`, `depth` + 1, ... of a prompt, of one space and `length` bytes each.

        Raises `PageTooLarge`, ValueError for empty pages and several spaces, and KeyError for an unmet space; then nothing is
        claimed.
        """
        self._pass_time(now_ms)
        keys = PageKeys.of(keys)
        self._check(keys, length)
        alone = self._lacks_all(keys)
        statuses = [Status.OK] * len(keys) if alone else self._occupied(keys)
        free: Sequence[int] = range(len(keys)) if alone else [index for index, each in enumerate(statuses) if each is Status.OK]
        offsets = self.tiering.dram.allocate(length, len(free)) if free else array("q")
        for index in free[len(offsets) :]:
            self.counters.no_room += 1
            statuses[index] = Status.BUSY
        if not offsets:
            return Reserved(0, statuses, offsets, self.settings.retry_after_ms)
        free = free[: len(offsets)]
        if len(free) < len(keys):
            keys = PageKeys.of([keys[index] for index in free])
            alone = free[-1] - free[0] == len(free) - 1 and self._lacks_all(keys)
        run = Run(keys, length, kind, depth + free[0], offsets) if alone and len(keys) > 1 else None
        depths = run.depths if run is not None else [depth + index for index in free]
        write = self.tiering.writes.begin(owner, keys, length, offsets, kind, depths, origin, self._now_ms, run)
        return Reserved(write.id, statuses, offsets, self.settings.retry_after_ms)

    def commit(self, write_id: int, checksums: bytes, owner: int, now_ms: float) -> Status:
        """The bytes are there, with these checksums, joined. MISS where the write is void or unknown: nothing is stored.

        Raises ValueError where there are not as many as pages were claimed.
        """
        if len(checksums) % CHECKSUM_BYTES:
            raise ValueError(f"checksums come in {CHECKSUM_BYTES} bytes each, {len(checksums)} is no multiple of it")
        self._pass_time(now_ms)
        self._expire_writes()
        write = self.tiering.writes.get(write_id, owner)
        if write is None:
            return Status.MISS
        if len(checksums) != len(write.keys) * CHECKSUM_BYTES:
            raise ValueError(f"{len(checksums)} bytes of checksums for a write of {len(write.keys)} pages")
        self.tiering.writes.end(write)
        if write.void:
            self.tiering.dram.unclaim(write.offsets)
            return Status.MISS
        self.counters.stored += len(write.keys)
        self.tiering.settle(write, checksums)
        return Status.OK

    def abort(self, write_id: int, owner: int) -> None:
        """Nothing was written, or nothing that counts. Unknown writes are ignored."""
        write = self.tiering.writes.take(write_id, owner)
        if write is not None:
            self.tiering.dram.unclaim(write.offsets)

    def close_owner(self, owner: int) -> None:
        """A client has gone: its leases end and its writes are dropped."""
        self.tiering.unhold_all(self._leases.end_owner(owner))
        for write in self.tiering.writes.take_owner(owner):
            self.tiering.dram.unclaim(write.offsets)

    def pin(self, keys: Sequence[PageKey], ttl_ms: float, now_ms: float) -> Pinned:
        """Keep pages in DRAM for a while: all of `keys` or none."""
        self._pass_time(now_ms)
        pages = []
        for index, key in enumerate(keys):
            page = self.catalog.get(key)
            if page is None or not page.in_dram:
                return Pinned(self._absent(index, key, page, {}))
            pages.append(page)
        pin = self._pins.add(pages, self._now_ms + min(ttl_ms, self.settings.max_pin_ms))
        if pin is None:
            self.counters.pins_refused += 1
            return Pinned(Status.BUSY, pages=self._pins.most(pages))
        return Pinned(Status.OK, pin.id, len(pin.pages))

    def unpin(self, pin_id: int) -> bool:
        """False for a pin that has ended."""
        loose = self._pins.remove(pin_id)
        for page in loose or ():
            self.tiering.dram.reconsider(page)
        return loose is not None

    def pins(self) -> list[Pin]:
        return self._pins.listed()

    @property
    def pinned_bytes(self) -> int:
        return self._pins.pinned_bytes

    @property
    def running_leases(self) -> int:
        return len(self._leases)

    def tag(self, keys: Iterable[PageKey], kind: PageKind) -> int:
        """Say what part of a prompt pages belong to; how many of them are here."""
        tagged = 0
        for key in keys:
            page = self.catalog.get(key)
            if page is not None:
                page.kind = kind
                self.tiering.dram.reweigh(page)
                tagged += 1
        return tagged

    def hand_over(self, page: Page, node: str) -> None:
        """The page lies on `node` now: forget it here and say MOVED from now on. Nothing, if it was forgotten meanwhile."""
        if self.catalog.get(page.key) is page:
            self.tiering.drop(page)
            self.catalog.note_moved(page.key, node)

    def corrupt(self, key: PageKey, generation: int) -> bool:
        """Bytes in DRAM failed their checksum: drop the page. False if those are not its bytes any more."""
        page = self.catalog.get(key)
        if page is None or not page.in_dram or page.generation != generation:
            return False
        self.counters.corrupt_dram += 1
        self.tiering.drop(page)
        return True

    def clear(self, space: bytes | None = None) -> int:
        """Forget every page (of a space), also those that are being written; held bytes come back as their holders let go. How
        many pages.

        Another life finds none of them once `unnoted_clears` is over.
        """
        for each in [space] if space is not None else self.journals.spaces():
            self.tiering.writes.void(each, self._now_ms)
            self.catalog.forget_moved(each)
            if self.tiering.ssd is not None:
                self.tiering.ssd.clear(each)
        before = len(self.catalog)
        for entry in self.catalog.entries(space):
            if isinstance(entry, Run) and not entry.holds:
                self.tiering.drop_run(entry)
        for page in self.catalog.pages(space):
            self.tiering.drop(page)
        return before - len(self.catalog)

    @property
    def unnoted_clears(self) -> bool:
        """Whether a crash could bring back what was cleared."""
        return self.tiering.ssd is not None and self.tiering.ssd.clears_open

    def tick(self, now_ms: float) -> None:
        """Let what has run out end, and keep DRAM below its watermark. Call every 100 ms or so."""
        self._pass_time(now_ms)
        self._expire_writes()
        for write in self.tiering.writes.take_released(self._now_ms):
            self.tiering.dram.unclaim(write.offsets)
        self._end_leases()
        for pin_id in self._pins.expired(self._now_ms):
            self.counters.pins_expired += 1
            self.unpin(pin_id)
        self.tiering.trim()

    def tidy(self) -> None:
        """Do what can wait. Call about once a second, better when nobody is waiting for an answer."""
        self.tiering.dram.tidy()
        self.journals.put_down()

    def plan(self, now_ms: float) -> list[Action]:
        """What should be done with bytes now. Every action is to be reported to `tiering`, page by page, once."""
        self._pass_time(now_ms)
        return self.tiering.plan()

    def _send_for(self, page: Page, gathering: Gathering, *, fits: bool) -> bool:
        """Whether a page on SSD alone is on its way."""
        if page.key in gathering.sent_for or not fits:
            gathering.full = gathering.full or not fits
            return fits and self.tiering.under_way(page.key)
        if self.tiering.want(page):
            gathering.sent_for.add(page.key)
        return True

    def _pass_time(self, now_ms: float) -> None:
        self._now_ms = max(self._now_ms, now_ms)

    def _leased(self, answer: Acquired, owner: int, ttl_ms: float) -> Acquired:
        now_ms, half_life_ms = self._now_ms, self.settings.heat_half_life_ms
        before = after = NEVER
        for held in answer.held:
            held.holds += 1
            held.hits += 1
            held.last_ms = now_ms
            if held.heat != before:  # neighbours were mostly stored and read together
                before, after = held.heat, warmed(held.heat, now_ms, half_life_ms)
            held.heat = after
            held.read_since_written = True
        self.counters.dram_hits += answer.statuses.count(Status.OK)
        self._note_recent(answer.held)
        lease = self._leases.grant(owner, answer.held, now_ms, self._lease_end_ms(ttl_ms))
        return Acquired(lease.id, answer.statuses, answer.held, answer.moved, answer.retry_after_ms)

    def _note_recent(self, held: Sequence[Held]) -> None:
        if self._recent_pages >= _MAX_RECENT:
            return
        pages = [each.key for each in held if isinstance(each, Page)]
        for keys in [pages, *(each.keys for each in held if isinstance(each, Run))]:
            self._recent.append(keys)
            self._recent_pages += len(keys)

    def _lease_end_ms(self, ttl_ms: float) -> float:
        return self._now_ms + min(ttl_ms, self.settings.max_lease_ms)

    def _absent(self, index: int, key: PageKey, page: Page | None, moved: dict[int, str]) -> Status:
        """Why a page is not in DRAM, counted; one on SSD is sent for."""
        if page is not None:
            self.counters.ssd_hits += 1
            self.tiering.want(page)
            return Status.BUSY
        if self.tiering.writes.writing(key):
            self.counters.busy += 1
            return Status.BUSY
        node = self.catalog.moved_to(key)
        if node is not None:
            self.counters.moved += 1
            moved[index] = node
            return Status.MOVED
        self.counters.misses += 1
        return Status.MISS

    def _check(self, keys: PageKeys, length: int) -> None:
        if keys and not self.journals.knows(keys.space):
            raise KeyError(f"page space {keys.space.hex()} is unknown here: introduce it with meet()")
        self.tiering.dram.slabs.check(length)

    def _lacks_all(self, keys: PageKeys) -> bool:
        """Whether these are different pages, none of which lies on this node or is being written."""
        return self.catalog.fresh(keys) and not self.tiering.writes.writing_any(keys)

    def _occupied(self, keys: PageKeys) -> list[Status]:
        """EXISTS and WRITING need no writing; OK does. A prompt that is put once more will not push out its own pages."""
        statuses = [Status.OK] * len(keys)
        found: list[Page | Run | None] = []
        for part in self.catalog.parts(keys):
            found += (part,) * (len(part) if isinstance(part, Run) else 1)
        for index, part in enumerate(found):
            if part is not None:
                part.last_ms = self._now_ms
                if isinstance(part, Run) or part.offset != NOWHERE:
                    statuses[index] = Status.EXISTS
        for index in self.catalog.beside_others(keys, found):
            statuses[index] = Status.BUSY
        if self.tiering.writes.writing_any(keys) or len(keys.distinct_ids) < len(keys):
            named: set[int] = set()
            for index, key in enumerate(keys):
                if statuses[index] is Status.OK and (id_of(key) in named or self.tiering.writes.writing(key)):
                    statuses[index] = Status.WRITING
                named.add(id_of(key))
        self.counters.already_stored += statuses.count(Status.EXISTS) + statuses.count(Status.WRITING)
        return statuses

    def _expire_writes(self) -> None:
        self.counters.writes_expired += self.tiering.writes.expire(self._now_ms)

    def _end_leases(self) -> None:
        for lease in self._leases.end_expired(self._now_ms):
            self.counters.leases_expired += 1
            self.tiering.unhold_all(lease.held)
