"""Between DRAM and SSD: copies, promotions, failures, full devices, and segments that make room."""

from __future__ import annotations

from store_model import BOB, KIB, SPACE, Disk, digest, make_store, perform, put, settle_all, small_ssd, status_of

from kvtier.page.key import PageKey, page_key
from kvtier.page.kind import PageKind
from kvtier.page.status import Status
from kvtier.policies.admission import AdmitReused
from kvtier.store.actions import Clear, Demote, Promote, Reclaim
from kvtier.store.node_store import NodeStore
from kvtier.store.page import SsdPlace
from kvtier.store.settings import DemoteWhen

OK, MISS, BUSY, CORRUPT = Status.OK, Status.MISS, Status.BUSY, Status.CORRUPT


def make(**ssd: object) -> tuple[NodeStore, list[PageKey], Disk]:
    """DRAM for 4 pages, SSD for 16."""
    store, keys = make_store(pages=4, ssd=small_ssd(**ssd))
    return store, keys, Disk(16 * KIB)


def fill(store: NodeStore, disk: Disk, keys: list[PageKey], now_ms: float = 0) -> None:
    for key in keys:
        assert put(store, key, now_ms) is OK
        settle_all(store, disk, now_ms)


def test_a_committed_page_goes_to_ssd_and_comes_back() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    assert store.counters.lost == 0
    found = store.leading(keys[:6], 1)
    assert (found.dram, found.local) == (0, 6)
    settle_all(store, disk, 2)
    assert store.acquire(keys[:1], BOB, 1000, 3).statuses == [OK]
    assert store.counters.promoted > 0


def test_a_page_on_ssd_alone_is_busy_and_sent_for() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    assert status_of(store, keys[0], 1) is BUSY
    (action,) = store.plan(1)
    assert isinstance(action, Promote)
    assert status_of(store, keys[0], 2) is BUSY  # on its way
    assert not [each for each in store.plan(2) if isinstance(each, Promote)]  # and asked for once
    perform(store, disk, [action])
    assert status_of(store, keys[0], 3) is OK


def test_on_eviction_only_what_leaves_is_written() -> None:
    store, keys = make_store(pages=8, ssd=small_ssd(demote=DemoteWhen.EVICTION), high_watermark=0.75, low_watermark=0.5)
    disk = Disk(16 * KIB)
    for time_ms, key in enumerate(keys[:6]):
        put(store, key, time_ms)
    settle_all(store, disk, 10)
    assert not disk.bytes_at
    put(store, keys[6], 11)
    store.tick(12)
    (action,) = store.plan(12)
    assert isinstance(action, Demote)
    assert [page.key for page in action.pages] == keys[:3]
    assert status_of(store, keys[0], 13) is OK  # readable until it has gone
    perform(store, disk, [action])
    assert store.leading(keys[:1], 14).dram == 0
    assert store.tiering.dram.slabs.used_bytes == 16 * KIB


def test_a_page_that_is_read_while_it_leaves_stays() -> None:
    store, keys = make_store(pages=4, ssd=small_ssd(demote=DemoteWhen.EVICTION), high_watermark=0.5, low_watermark=0.5)
    disk = Disk(16 * KIB)
    for time_ms, key in enumerate(keys[:3]):
        put(store, key, time_ms)
    store.tick(10)
    actions = store.plan(10)
    lease = store.acquire(keys[:1], BOB, 1000, 11)
    perform(store, disk, actions)
    store.release(lease.lease_id, BOB)
    page = store.catalog.get(keys[0])
    assert page is not None
    assert page.in_dram
    assert page.place is not None


def test_pages_that_were_never_read_are_not_worth_a_write() -> None:
    store, keys, disk = make(admission=AdmitReused(min_hits=1), demote=DemoteWhen.EVICTION)
    for time_ms, key in enumerate(keys[:4]):
        put(store, key, time_ms)
    status_of(store, keys[0], 9)
    store.tick(10)
    settle_all(store, disk, 10)
    assert set(disk.bytes_at.values()) <= {store.catalog.get(keys[0]).checksum}  # type: ignore[union-attr]


def test_corrupt_bytes_on_ssd_are_dropped_and_counted() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    store.tiering.want(store.catalog.get(keys[0]))  # type: ignore[arg-type]
    (action,) = store.plan(1)
    assert isinstance(action, Promote)
    store.tiering.promotion_failed(action.write_id, CORRUPT)
    assert status_of(store, keys[0], 2) is MISS
    assert store.counters.corrupt_ssd == 1


def test_a_page_that_is_computed_again_before_it_is_read_is_not_read() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    assert status_of(store, keys[0], 1) is BUSY
    reserved = store.reserve(keys[:1], 4096, BOB, 2)
    assert reserved.statuses == [OK]
    assert not [each for each in store.plan(3) if isinstance(each, Promote)]
    page = store.catalog.get(keys[0])
    assert page is not None
    assert store.commit(reserved.write_id, page.checksum, BOB, 4) is OK
    settle_all(store, disk, 5)
    assert (page.in_dram, page.place is not None) == (True, True)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB * sum(each.in_dram for each in store.catalog.pages())


def test_a_failed_read_leaves_the_page_where_it_is() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    assert status_of(store, keys[0], 1) is BUSY
    (action,) = store.plan(1)
    assert isinstance(action, Promote)
    used = store.tiering.dram.slabs.used_bytes
    store.tiering.promotion_failed(action.write_id, BUSY)
    assert store.tiering.dram.slabs.used_bytes == used - 4 * KIB
    assert status_of(store, keys[0], 2) is BUSY
    settle_all(store, disk, 3)
    assert status_of(store, keys[0], 4) is OK


def test_corrupt_bytes_in_dram_never_reach_ssd() -> None:
    store, keys, _ = make()
    put(store, keys[0], 0)
    (action,) = store.plan(0)
    assert isinstance(action, Demote)
    store.tiering.demotion_failed(action.pages[0].generation, CORRUPT)
    assert status_of(store, keys[0], 1) is MISS
    assert (store.counters.corrupt_dram, store.tiering.dram.slabs.used_bytes) == (1, 0)


def test_a_full_device_is_left_alone_for_a_while_and_then_makes_do_with_less() -> None:
    store, keys, disk = make(bytes=128 * KIB, full_backoff_ms=1000, max_writing_bytes=4 * KIB, batch_bytes=4 * KIB)
    fill(store, disk, keys[:9])  # three of eight segments begun
    put(store, keys[10], 0)
    put(store, keys[11], 0)
    (action,) = [each for each in store.plan(0) if isinstance(each, Demote)]
    store.tiering.demotion_failed(action.pages[0].generation, BUSY)
    actions = store.plan(1)
    assert [type(each) for each in actions] == [Reclaim]
    perform(store, disk, actions)  # an old segment makes room
    put(store, keys[12], 2)
    assert store.counters.demotions_skipped == 2  # one was queued, one came later
    ssd = store.tiering.ssd
    assert ssd is not None
    assert ssd.max_segments == 3
    settle_all(store, disk, 3)
    assert len(ssd.segments) < 3
    put(store, keys[13], 1002)
    settle_all(store, disk, 1002)
    assert store.catalog.get(keys[13]).place is not None  # type: ignore[union-attr]


def test_a_full_device_does_not_hold_what_was_leaving() -> None:
    store, keys = make_store(pages=4, ssd=small_ssd(demote=DemoteWhen.EVICTION, batch_bytes=4 * KIB, max_writing_bytes=4 * KIB),
                             high_watermark=0.5, low_watermark=0.25, max_pinned_share=0)  # fmt: skip
    for time_ms, key in enumerate(keys[:4]):
        put(store, key, time_ms)
    store.tick(10)
    (action,) = store.plan(10)
    assert isinstance(action, Demote)
    store.tiering.demotion_failed(action.pages[0].generation, BUSY)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    assert [put(store, key, 11) for key in keys[4:8]] == [OK] * 4


def test_a_segment_makes_room_and_keeps_what_was_read() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:8])  # two of four segments
    assert status_of(store, keys[0], 1) is BUSY
    settle_all(store, disk, 1)
    fill(store, disk, keys[8:9], 2)  # a third: one must go
    page = store.catalog.get(keys[0])
    assert page is not None
    assert page.place is not None
    assert page.place.segment > 1
    assert [store.catalog.get(key) for key in keys[1:4]] == [None] * 3
    assert (store.counters.ssd_kept, store.counters.ssd_forgotten) == (1, 3)
    assert 1 not in {each.segment for each in disk.bytes_at}


def test_a_segment_stays_while_it_is_read() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:8])
    reading = []
    for key in (keys[0], keys[4]):
        assert status_of(store, key, 1) is BUSY
        reading += [each for each in store.plan(1) if isinstance(each, Promote)]
    for key in keys[8:13]:
        put(store, key, 2)
        perform(store, disk, [each for each in store.plan(2) if isinstance(each, Demote)])
    ssd = store.tiering.ssd
    assert ssd is not None
    assert len(ssd.segments) == 4
    reclaims = [each.segment for each in store.plan(3) if isinstance(each, Reclaim)]
    assert reclaims == [3]  # 1 and 2 are being read, 4 is being written
    perform(store, disk, list(reading))
    assert [status_of(store, key, 4) for key in (keys[0], keys[4])] == [OK, OK]


def next_reclaim(store: NodeStore, disk: Disk, keys: list[PageKey]) -> Reclaim:
    """Put pages until segments run short."""
    for key in keys[20:40]:
        put(store, key, 2)
        actions = store.plan(2)
        for action in actions:
            if isinstance(action, Reclaim):
                return action
        perform(store, disk, actions)
    raise AssertionError("segments never run short")


def test_a_failed_move_forgets_the_page() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:8])
    status_of(store, keys[0], 1)
    settle_all(store, disk, 1)
    reclaim = next_reclaim(store, disk, keys)
    assert [put(store, key, 3) for key in keys[40:44]] == [OK] * 4  # it leaves DRAM
    assert status_of(store, keys[0], 3) is BUSY
    assert not [each for each in store.plan(3) if isinstance(each, Promote)]  # not from a segment that is about to go
    store.tiering.keep_failed(reclaim.keep[0].key, reclaim.segment, CORRUPT)
    store.tiering.reclaimed(reclaim.segment)
    page = store.catalog.get(keys[0])
    assert page is None or page.place is None
    assert store.counters.corrupt_ssd == 1


def test_a_recomputed_page_with_other_bytes_replaces_the_copy_on_ssd() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    old = store.catalog.get(keys[0]).place  # type: ignore[union-attr]
    assert put(store, keys[0], 1, variant=1) is OK
    settle_all(store, disk, 1)
    page = store.catalog.get(keys[0])
    assert page is not None
    assert page.place not in (None, old)
    assert disk.bytes_at[page.place] == page.checksum


def test_a_recomputed_page_with_the_same_bytes_is_not_written_again() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    demoted = store.counters.demoted
    assert put(store, keys[0], 1) is OK
    settle_all(store, disk, 1)
    assert store.counters.demoted == demoted


def test_a_store_that_starts_again_knows_what_is_on_ssd() -> None:
    store, _, _ = make()
    space = store.meet(SPACE)
    for number, place in ((1, SsdPlace(1, 0)), (2, SsdPlace(1, 4096)), (1, SsdPlace(2, 0))):
        key = page_key(space, digest(number))
        store.tiering.recover(key, 4096, bytes([place.segment]) * 16, PageKind.SYSTEM_PROMPT, 3, place)
    assert store.counters.recovered == 2
    page = store.catalog.get(page_key(space, digest(1)))
    assert page is not None
    assert (page.place, page.checksum, page.kind, page.depth) == (SsdPlace(2, 0), b"\x02" * 16, PageKind.SYSTEM_PROMPT, 3)
    assert status_of(store, page.key, 1) is BUSY
    assert store.tiering.ssd.live_bytes == 8192  # type: ignore[union-attr]


def test_a_page_longer_than_a_slab_is_not_taken_in_and_its_segment_goes() -> None:
    store, _, disk = make()
    keys = [page_key(store.meet(SPACE), digest(number)) for number in range(3)]
    for key, length, place in (
        (keys[0], 4096, SsdPlace(1, 0)),
        (keys[0], 32 * KIB, SsdPlace(2, 0)),
        (keys[1], 32 * KIB, SsdPlace(3, 0)),
        (keys[2], 4096, SsdPlace(4, 0)),
    ):
        disk.bytes_at[place] = key[:16]
        store.tiering.recover(key, length, key[:16], PageKind.USER_QUERY, 0, place)
    assert (store.counters.recovered, store.counters.recovered_too_large) == (1, 2)
    assert [status_of(store, key, 1) for key in keys] == [MISS, MISS, BUSY]
    settle_all(store, disk, 1)
    assert status_of(store, keys[2], 2) is OK
    assert {place.segment for place in disk.bytes_at} == {4}
    assert [put(store, key, 3) for key in keys[:2]] == [OK, OK]


def test_a_clear_while_bytes_are_moved_leaves_no_trace() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    put(store, keys[7], 1)
    status_of(store, keys[0], 1)
    actions = store.plan(1)
    assert {type(each) for each in actions} == {Demote, Promote}
    store.clear()
    assert store.plan(2) == []  # to be noted when what is being written has been
    for action in actions:
        if isinstance(action, Demote):
            store.tiering.demoted(action.pages[0].generation, SsdPlace(9, 0))
        elif isinstance(action, Promote):
            store.tiering.promoted(action.write_id)
    assert len(store.catalog) == 0
    assert store.tiering.dram.slabs.used_bytes == 0
    settle_all(store, disk, 2)
    assert len(store.tiering.ssd.segments) <= 1  # type: ignore[union-attr]


def test_what_was_being_read_when_it_was_cleared_is_not_taken_for_what_was_put_since() -> None:
    store, keys, disk = make()
    fill(store, disk, keys[:6])
    assert [status_of(store, key, 1) for key in keys[:2]] == [BUSY, BUSY]
    reads = [each for each in store.plan(1) if isinstance(each, Promote)]
    assert len(reads) == 2
    store.clear()
    assert [put(store, key, 2, variant=1) for key in keys[:2]] == [OK, OK]
    store.tiering.promoted(reads[0].write_id)
    store.tiering.promotion_failed(reads[1].write_id, CORRUPT)
    pages = store.leased_pages(store.acquire(keys[:2], BOB, 10, 3).lease_id, BOB)
    assert pages
    assert all(page.offset not in {read.offset for read in reads} for page in pages)
    assert store.tiering.dram.slabs.used_bytes == 8 * KIB
    assert (store.counters.promoted, store.counters.corrupt_ssd) == (0, 0)


def test_nothing_is_written_between_a_clear_and_its_note() -> None:
    store, keys, disk = make()
    put(store, keys[0], 0)
    (writing,) = store.plan(0)
    assert isinstance(writing, Demote)
    store.clear(store.meet(SPACE))
    put(store, keys[1], 1)
    assert store.plan(1) == []
    perform(store, disk, [writing])
    assert store.plan(2) == [Clear((store.meet(SPACE),))]
    assert store.plan(2) == []
    assert store.unnoted_clears
    store.tiering.cleared()
    assert not store.unnoted_clears
    (later,) = store.plan(3)
    assert isinstance(later, Demote)
    assert [page.key for page in later.pages] == [keys[1]]


def test_a_clear_that_cannot_be_noted_is_tried_again_and_holds_up_nothing_meanwhile() -> None:
    store, keys, disk = make(full_backoff_ms=1000)
    store.clear()
    (action,) = store.plan(0)
    assert isinstance(action, Clear)
    store.tiering.clear_failed()
    put(store, keys[1], 1)
    settle_all(store, disk, 1)
    assert store.catalog.get(keys[1]).place is not None  # type: ignore[union-attr]
    assert store.unnoted_clears
    assert store.plan(1000) == [action]
    store.clear(store.meet(SPACE))  # while the first is being noted
    store.tiering.cleared()
    assert store.plan(1000) == [action]
    store.tiering.cleared()
    assert not store.unnoted_clears


def test_a_store_without_ssd_has_nothing_to_note() -> None:
    store, keys = make_store()
    put(store, keys[0], 0)
    assert store.clear() == 1
    assert not store.unnoted_clears
    assert store.plan(0) == []
