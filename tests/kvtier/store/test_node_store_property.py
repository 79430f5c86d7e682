"""The store against dictionaries: whatever clients, clocks and devices do, promised bytes stay and answers are true."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_model import KIB, SPACE, Disk, Seen, digest, seen

from costmodel.values import Tier
from kvtier.index.events import BlocksRemoved, BlocksStored
from kvtier.page.key import PageKey, page_key
from kvtier.page.kind import PageKind
from kvtier.page.status import Status
from kvtier.policies.admission import AdmissionPolicy, AdmitAll, AdmitReused
from kvtier.policies.eviction import EvictionPolicy, LfuDecay, Lru, ReusePerByte, SemanticClasses
from kvtier.store.actions import Action, Clear, Demotion, Keep, Promote, Reclaim
from kvtier.store.journal import event_id
from kvtier.store.node_store import NodeStore
from kvtier.store.page import SsdPlace
from kvtier.store.settings import DemoteWhen, DramSettings, SsdSettings
from kvtier.store.slabs import class_bytes
from kvtier.store.writes import Origin

KEYS = 24
POLICIES = (Lru(), LfuDecay(), ReusePerByte(), SemanticClasses())
numbers = st.integers(0, KEYS - 1)
owners = st.integers(1, 3)


@dataclass
class HeldLease:
    owner: int
    deadline_ms: float
    pages: dict[PageKey, tuple[int, bytes]]  # where and what


@dataclass
class HeldWrite:
    owner: int
    at: dict[PageKey, int]
    void: bool = False


@dataclass
class HeldPin:
    deadline_ms: float
    keys: set[PageKey]


class StoreMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(POLICIES),
        demote=st.sampled_from([None, DemoteWhen.COMMIT, DemoteWhen.EVICTION]),
        admission=st.sampled_from([AdmitAll(), AdmitReused()]),
    )
    def start(self, policy: EvictionPolicy, demote: DemoteWhen | None, admission: AdmissionPolicy) -> None:
        dram = DramSettings(
            bytes=64 * KIB, slab_bytes=16 * KIB, eviction=policy, high_watermark=0.8, low_watermark=0.6,
            pending_ttl_ms=100, quarantine_ms=300, max_lease_ms=200, max_pin_ms=400, heat_half_life_ms=500,
        )  # fmt: skip
        ssd = demote and SsdSettings(
            bytes=96 * KIB, segment_bytes=16 * KIB, demote=demote, admission=admission, batch_bytes=8 * KIB,
            max_writing_bytes=16 * KIB, max_reading_bytes=16 * KIB, full_backoff_ms=50, max_queued_pages=8,
        )  # fmt: skip
        self.store = NodeStore(dram, ssd or None, epoch=1)
        space = self.store.meet(SPACE)
        self.keys = [page_key(space, digest(number)) for number in range(KEYS)]
        self.by_id = {event_id(digest(number)): self.keys[number] for number in range(KEYS)}
        self.clock_ms = 1000.0
        self.latest_ms = 0.0
        self.memory: dict[int, bytes] = {}
        self.disk = Disk(16 * KIB)
        self.leases: dict[int, HeldLease] = {}
        self.pins: dict[int, HeldPin] = {}
        self.writes: dict[int, HeldWrite] = {}
        self.todo: list[Demotion | Promote | Clear | tuple[Reclaim, Keep | None]] = []
        self.reading_void: set[int] = set()  # reads from SSD that a clear has overtaken
        self.failed_notes = False
        self.noted: set[SsdPlace] = set()  # what was on SSD when a clear was noted: forgotten by the next life
        self.seen = 0
        self.known: dict[Tier, set[PageKey]] = {Tier.L3: set(), Tier.L4: set()}

    def now(self) -> float:
        self.latest_ms = max(self.latest_ms, self.clock_ms)
        return self.clock_ms

    def listed(self) -> dict[PageKey, Seen]:
        return {page.key: page for page in seen(self.store.catalog.entries())}

    def project(self) -> None:
        """Follow the journal."""
        (journal,) = self.store.journals.whole_spaces().values()
        replay = journal.since(self.seen)
        assert not replay.snapshot
        for batch in replay.batches:
            assert batch.seq == self.seen
            self.seen += 1
            for event in batch.events:
                keys = {self.by_id[each] for each in event.hashes}  # type: ignore[union-attr]
                if isinstance(event, BlocksStored):
                    assert not keys & self.known[event.tier], "stored twice"
                    self.known[event.tier] |= keys
                else:
                    assert isinstance(event, BlocksRemoved)
                    assert event.tier is not None
                    assert keys <= self.known[event.tier], "removed what was not there"
                    self.known[event.tier] -= keys

    # Clients

    @rule(step_ms=st.one_of(st.floats(0, 150), st.floats(-500, 0), st.just(10_000.0)))
    def pass_time(self, step_ms: float) -> None:
        self.clock_ms += step_ms

    @rule(number=numbers, count=st.integers(1, 4), owner=owners, length=st.sampled_from([3000, 4096, 7000]))
    def reserve(self, number: int, count: int, owner: int, length: int) -> None:
        keys = self.keys[number : number + count]
        before = [key in self.known[Tier.L3] for key in keys]
        writing = {key for write in self.writes.values() for key in write.at}
        reserved = self.store.reserve(keys, length, owner, self.now(), depth=number)
        claimed = [key for key, status in zip(keys, reserved.statuses, strict=True) if status is Status.OK]
        assert bool(reserved.write_id) == bool(claimed)
        if claimed:
            self.writes[reserved.write_id] = HeldWrite(owner, dict(zip(claimed, reserved.offsets, strict=True)))
        pages = self.listed()
        for key, there, status in zip(keys, before, reserved.statuses, strict=True):
            assert (status is Status.EXISTS) <= there
            page = pages.get(key)
            if status is Status.OK:
                assert page is None or not page.in_dram, "a page in DRAM needs no writing"
            elif status is Status.EXISTS:
                assert key not in writing or key in self.known[Tier.L3]

    @rule(number=numbers, count=st.integers(1, 8), variant=st.integers(0, 1))
    def put(self, number: int, count: int, variant: int) -> None:
        """A prompt's pages, all the way."""
        mine = set(self.writes)
        self.reserve(number, count, 1, 4096)
        for write_id in sorted(set(self.writes) - mine):
            self.commit_one(write_id, variant)

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), variant=st.integers(0, 1), by_another=st.booleans())
    def commit(self, data: st.DataObject, variant: int, by_another: bool) -> None:
        write_id = data.draw(st.sampled_from(sorted(self.writes)))
        if by_another:
            assert self.store.commit(write_id, b"x" * 16, 99, self.now()) is Status.MISS
        else:
            self.commit_one(write_id, variant)

    def commit_one(self, write_id: int, variant: int) -> None:
        write = self.writes.pop(write_id)
        contents = [sha256(key + bytes([variant])).digest()[:16] for key in write.at]
        if self.store.tiering.writes.get(write_id, write.owner):  # later its bytes are others'; checksums catch that
            self.memory.update(zip(write.at.values(), contents, strict=True))
        committed = self.store.commit(write_id, b"".join(contents), write.owner, self.now())
        assert committed is Status.MISS or not write.void, "what was begun before a clear is stored after it"
        if committed is Status.OK:
            pages = self.listed()
            for (key, offset), content in zip(write.at.items(), contents, strict=True):
                page = pages[key]
                assert (page.offset, page.checksum) == (offset, content)

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        write_id = data.draw(st.sampled_from(sorted(self.writes)))
        self.store.abort(write_id, self.writes.pop(write_id).owner)

    @rule(number=numbers, count=st.integers(1, 6), again=st.integers(0, 2), owner=owners, ttl_ms=st.floats(1, 400))
    def acquire(self, number: int, count: int, again: int, owner: int, ttl_ms: float) -> None:
        self.project()
        keys = self.keys[number : number + count] + self.keys[number : number + again]
        acquired = self.store.acquire(keys, owner, ttl_ms, self.now())
        held = {page.key: (page.offset, page.checksum) for page in seen(acquired.held)}
        assert [page.key for page in seen(acquired.held)] == [
            key for key, status in zip(keys, acquired.statuses, strict=True) if status is Status.OK
        ]
        for index, (key, status) in enumerate(zip(keys, acquired.statuses, strict=True)):
            assert (status is Status.OK) == (key in self.known[Tier.L3])
            if status is Status.MISS:
                assert key not in self.known[Tier.L4]
                assert not self.store.tiering.writes.writing(key)
            assert (status is Status.MOVED) == (index in acquired.moved)
        assert bool(acquired.lease_id) == bool(held)
        if held:
            self.leases[acquired.lease_id] = HeldLease(owner, self.latest_ms + min(ttl_ms, 200), held)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ttl_ms=st.floats(1, 400))
    def renew(self, data: st.DataObject, ttl_ms: float) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases[lease_id]
        renewed = self.store.renew(lease_id, lease.owner, ttl_ms, self.now())
        assert renewed == (lease.deadline_ms > self.latest_ms)
        if renewed:
            lease.deadline_ms = max(lease.deadline_ms, self.latest_ms + min(ttl_ms, 200))
        else:
            del self.leases[lease_id]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases.pop(lease_id)
        self.store.release(lease_id, lease.owner + 10)  # not its own: nothing happens
        self.store.release(lease_id, lease.owner)
        self.store.release(lease_id, lease.owner)  # twice does no harm

    @rule(owner=owners)
    def leave(self, owner: int) -> None:
        self.store.close_owner(owner)
        self.leases = {each: lease for each, lease in self.leases.items() if lease.owner != owner}
        self.writes = {each: write for each, write in self.writes.items() if write.owner != owner}

    @rule(number=numbers, count=st.integers(1, 4))
    def look(self, number: int, count: int) -> None:
        self.project()
        keys = self.keys[number : number + count]
        found = self.store.leading(keys, self.now())
        assert found.dram == leading([key in self.known[Tier.L3] for key in keys])
        assert found.local == leading([key in self.known[Tier.L3] | self.known[Tier.L4] for key in keys])

    # Operators

    @rule(number=numbers, count=st.integers(1, 3), ttl_ms=st.floats(1, 600))
    def pin(self, number: int, count: int, ttl_ms: float) -> None:
        self.project()
        keys = self.keys[number : number + count]
        pinned = self.store.pin(keys, ttl_ms, self.now())
        if pinned.status is Status.OK:
            assert set(keys) <= self.known[Tier.L3]
            self.pins[pinned.pin_id] = HeldPin(self.latest_ms + min(ttl_ms, 400), set(keys))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin_id = data.draw(st.sampled_from(sorted(self.pins)))
        self.store.unpin(pin_id)
        del self.pins[pin_id]

    @rule(number=numbers, kind=st.sampled_from(PageKind))
    def tag(self, number: int, kind: PageKind) -> None:
        self.store.tag(self.keys[number : number + 3], kind)

    @rule(number=numbers)
    def report_corrupt(self, number: int) -> None:
        page = self.store.catalog.get(self.keys[number])
        generation = page.generation if page else 0
        assert not self.store.corrupt(self.keys[number], generation + 1)
        if self.store.corrupt(self.keys[number], generation):
            self.unpromise({self.keys[number]})

    @rule(number=numbers)
    def hand_over(self, number: int) -> None:
        page = self.store.catalog.get(self.keys[number])
        if page is None:
            return
        self.store.hand_over(page, "elsewhere")
        self.unpromise({self.keys[number]})
        assert self.store.acquire([self.keys[number]], 1, 10, self.now()).statuses[0] in (Status.MOVED, Status.BUSY)

    @rule(really=st.integers(0, 9).map(lambda number: not number))
    def clear(self, really: bool) -> None:
        if not really:
            return
        self.store.clear()
        self.reading_void.update(write.id for write in self.store.tiering.writes if write.origin is Origin.SSD)
        for write in self.writes.values():
            write.void = True
        assert not any(map(self.store.tiering.writes.writing, self.keys))
        self.unpromise(set(self.keys))
        self.project()
        assert self.known == {Tier.L3: set(), Tier.L4: set()}

    def unpromise(self, keys: set[PageKey]) -> None:
        for pin in self.pins.values():
            pin.keys -= keys

    # The agent

    @rule()
    def tick(self) -> None:
        self.store.tick(self.now())
        self.store.tidy()
        self.forget_what_ran_out()

    def forget_what_ran_out(self) -> None:
        self.leases = {each: lease for each, lease in self.leases.items() if lease.deadline_ms > self.latest_ms}
        self.pins = {each: pin for each, pin in self.pins.items() if pin.deadline_ms > self.latest_ms}

    @rule()
    def plan(self) -> None:
        for action in self.store.plan(self.now()):
            self.todo.extend(parts(action))

    @rule()
    def work_off(self) -> None:
        """Let the agent do all there is to do."""
        self.tick()
        self.plan()
        while self.todo:
            self.finish_one()

    def finish_one(self) -> None:
        todo = self.todo.pop(next(index for index, each in enumerate(self.todo) if not self.waits(each)))
        if isinstance(todo, Demotion):
            self.demote(todo, "well")
        elif isinstance(todo, Promote):
            self.promote(todo, "well")
        elif isinstance(todo, Clear):
            self.note(todo, "well")
        else:
            self.reclaim(*todo, "well")

    @precondition(lambda self: self.todo)
    @rule(data=st.data(), outcome=st.sampled_from(["well", "well", "well", "failed", "corrupt", "full"]))
    def perform(self, data: st.DataObject, outcome: str) -> None:
        """Actions end in any order, but the parts of a reclaim before its end."""
        able = [index for index, each in enumerate(self.todo) if not self.waits(each)]
        todo = self.todo.pop(data.draw(st.sampled_from(able)))
        if isinstance(todo, Demotion):
            self.demote(todo, outcome)
        elif isinstance(todo, Promote):
            self.promote(todo, outcome)
        elif isinstance(todo, Clear):
            self.note(todo, outcome)
        else:
            self.reclaim(*todo, outcome)

    def waits(self, todo: object) -> bool:
        return isinstance(todo, tuple) and todo[1] is None and any(
            isinstance(other, tuple) and other[0] is todo[0] and other[1] is not None for other in self.todo
        )  # fmt: skip

    def demote(self, todo: Demotion, outcome: str) -> None:
        assert self.memory[todo.offset] == todo.checksum, "bytes that are being written to SSD have gone"
        if outcome == "well":
            self.store.tiering.demoted(todo.generation, self.disk.append(todo.length, todo.checksum))
            return
        status = {"failed": Status.MISS, "corrupt": Status.CORRUPT, "full": Status.BUSY}[outcome]
        self.store.tiering.demotion_failed(todo.generation, status)
        if status is Status.CORRUPT:
            self.unpromise({todo.key})

    def promote(self, todo: Promote, outcome: str) -> None:
        assert self.disk.bytes_at[todo.place] == todo.checksum, "a page's segment was deleted while it was read"
        if outcome in ("well", "full"):
            self.memory[todo.offset] = todo.checksum
            promoted = self.store.counters.promoted
            self.store.tiering.promoted(todo.write_id)
            assert todo.write_id not in self.reading_void or self.store.counters.promoted == promoted
        else:
            self.store.tiering.promotion_failed(todo.write_id, Status.CORRUPT if outcome == "corrupt" else Status.MISS)

    def note(self, todo: Clear, outcome: str) -> None:
        assert not [each for each in self.todo if not isinstance(each, Promote)], (
            "what is written now is neither before nor behind"
        )
        if outcome == "well":
            self.noted = set(self.disk.bytes_at)
            self.store.tiering.cleared()
        else:
            self.failed_notes = True
            self.store.tiering.clear_failed()

    def reclaim(self, action: Reclaim, keep: Keep | None, outcome: str) -> None:
        if keep is None:
            self.disk.delete(action.segment)
            self.store.tiering.reclaimed(action.segment)
        elif outcome == "well":
            assert self.disk.bytes_at[keep.place] == keep.checksum
            self.store.tiering.kept(keep.key, action.segment, self.disk.append(keep.length, keep.checksum))
        else:
            self.store.tiering.keep_failed(keep.key, action.segment, Status.CORRUPT)

    # What must hold

    @invariant()
    def the_next_life_finds_what_this_one_has(self) -> None:
        """And no more, once a clear was noted: of one that failed, it forgets too much."""
        ssd = self.store.tiering.ssd
        if ssd is not None and not ssd.clears_open:
            places = {page.place for page in self.listed().values() if page.place is not None}
            assert self.failed_notes or not places & self.noted

    @invariant()
    def nothing_overlaps(self) -> None:
        slabs = self.store.tiering.dram.slabs
        extents = sorted(self.extents())
        for (start, size), (next_start, _) in pairwise(extents):
            assert start + size <= next_start
        assert slabs.used_bytes == sum(size for _, size in extents) <= slabs.capacity_bytes

    def extents(self) -> list[tuple[int, int]]:
        dram, writes = self.store.tiering.dram, self.store.tiering.writes
        pages = [(page.offset, class_bytes(page.length)) for page in seen(dram.residents())]
        return pages + [(offset, class_bytes(write.length)) for write in writes for offset in write.offsets]

    @invariant()
    def leased_bytes_stay(self) -> None:
        for lease in self.leases.values():
            if lease.deadline_ms > self.latest_ms:
                for offset, content in lease.pages.values():
                    assert self.memory[offset] == content

    @invariant()
    def pages_hold_what_they_say(self) -> None:
        for page in self.listed().values():
            assert not page.in_dram or self.memory[page.offset] == page.checksum
            assert page.place is None or self.disk.bytes_at[page.place] == page.checksum

    @invariant()
    def the_journal_tells_the_truth(self) -> None:
        self.project()
        pages = self.listed().values()
        assert self.known[Tier.L3] == {page.key for page in pages if page.in_dram}
        assert self.known[Tier.L4] == {page.key for page in pages if page.place is not None}

    @invariant()
    def pinned_pages_stay(self) -> None:
        assert self.store.pinned_bytes <= int(64 * KIB * 0.3)
        for pin in self.pins.values():
            if pin.deadline_ms > self.latest_ms:
                for key in pin.keys:
                    page = self.store.catalog.get(key)
                    assert page is not None
                    assert page.in_dram

    @invariant()
    def whatever_may_go_is_found(self) -> None:
        for page in seen(self.store.tiering.dram.residents()):
            assert page.queued or not page.evictable

    def teardown(self) -> None:
        """Once everyone has let go, nothing is held and the whole pool can be had."""
        if not hasattr(self, "store"):
            return
        for owner in (1, 2, 3):
            self.store.close_owner(owner)
        for _ in range(1000):
            while self.todo:
                self.finish_one()
            self.latest_ms += 10_000
            self.clock_ms = self.latest_ms
            self.tick()
            self.plan()
            if not self.todo:
                break
        assert not self.todo, "the store plans for ever"
        dram = self.store.tiering.dram
        assert not len(self.store.tiering.writes)
        assert all(page.evictable for page in seen(dram.residents()))
        assert self.store.pinned_bytes == 0
        reserved = self.store.reserve(self.fresh_keys(16), 4096, 9, self.clock_ms)
        assert set(reserved.statuses) == {Status.OK}

    def fresh_keys(self, count: int) -> list[PageKey]:
        space = self.store.meet(SPACE)
        return [page_key(space, digest(1000 + number)) for number in range(count)]


def leading(flags: list[bool]) -> int:
    return next((index for index, flag in enumerate(flags) if not flag), len(flags))


def parts(action: Action) -> list[Demotion | Promote | Clear | tuple[Reclaim, Keep | None]]:
    if isinstance(action, Promote | Clear):
        return [action]
    if isinstance(action, Reclaim):
        return [*((action, keep) for keep in action.keep), (action, None)]
    return list(action.pages)


TestStore = pytest.mark.slow(StoreMachine.TestCase)
TestStore.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
