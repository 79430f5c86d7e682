"""The store's answers one by one: puts, leases, expiry, pins, eviction."""

from __future__ import annotations

import pytest
from store_model import ALICE, BOB, KIB, SPACE, digest, make_store, put, status_of

from kvtier.page.key import page_key
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.policies.eviction import Lru, SemanticClasses
from kvtier.store.page import Page
from kvtier.store.settings import DramSettings, SsdSettings
from kvtier.store.slabs import PageTooLarge
from kvtier.store.writes import Origin

OK, MISS, BUSY, MOVED = Status.OK, Status.MISS, Status.BUSY, Status.MOVED
EXISTS, WRITING = Status.EXISTS, Status.WRITING


def test_a_page_is_served_once_committed() -> None:
    store, (key, *_) = make_store()
    reserved = store.reserve([key], 4096, ALICE, 0)
    assert status_of(store, key, 0) is BUSY
    assert store.reserve([key], 4096, BOB, 0).statuses == [WRITING]
    assert store.commit(reserved.write_id, b"c" * 16, ALICE, 1) is OK
    acquired = store.acquire([key], BOB, 1000, 2)
    (page,) = acquired.held
    assert isinstance(page, Page)
    assert (page.offset, page.length, page.checksum) == (reserved.offsets[0], 4096, b"c" * 16)


def test_a_duplicate_put_costs_nothing() -> None:
    store, (key, *_) = make_store()
    assert put(store, key, 0) is OK
    assert put(store, key, 1) is EXISTS
    assert (store.counters.stored, store.counters.already_stored) == (1, 1)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB


def test_a_batch_that_names_a_page_twice_writes_it_once() -> None:
    store, (key, *_) = make_store()
    assert store.reserve([key, key], 4096, ALICE, 0).statuses == [OK, WRITING]


def test_pages_that_are_reserved_together_are_stored_together() -> None:
    store, keys = make_store(pages=4)
    put(store, keys[1], 0)
    store.acquire([keys[1]], BOB, 1000, 0)
    reserved = store.reserve(keys[:6], 4096, ALICE, 1)
    assert reserved.statuses == [OK, EXISTS, OK, OK, BUSY, BUSY]
    checksums = [bytes([number]) * 16 for number in range(3)]
    with pytest.raises(ValueError, match="32 bytes of checksums for a write of 3 pages"):
        store.commit(reserved.write_id, b"".join(checksums[:2]), ALICE, 2)
    assert store.commit(reserved.write_id, b"".join(checksums), ALICE, 2) is OK
    assert store.commit(reserved.write_id, b"".join(checksums), ALICE, 3) is MISS
    pages = store.leased_pages(store.acquire(keys[:4], BOB, 10, 4).lease_id, BOB) or []
    assert [page.checksum for page in pages if page.key != keys[1]] == checksums
    assert [page.depth for page in pages if page.key != keys[1]] == [0, 2, 3]
    assert [page.offset for page in pages if page.key != keys[1]] == list(reserved.offsets)


def test_an_aborted_put_leaves_nothing() -> None:
    store, (key, *_) = make_store()
    reserved = store.reserve([key], 4096, ALICE, 0)
    store.abort(reserved.write_id, BOB)
    assert status_of(store, key, 0) is BUSY  # not Bob's to abort
    store.abort(reserved.write_id, ALICE)
    assert status_of(store, key, 0) is MISS
    assert store.commit(reserved.write_id, b"c" * 16, ALICE, 0) is MISS
    assert store.tiering.dram.slabs.used_bytes == 0


def test_an_expired_put_frees_its_key_at_once_and_its_bytes_when_the_writer_lets_go() -> None:
    store, (key, *_) = make_store(pending_ttl_ms=100, quarantine_ms=1000)
    slow = store.reserve([key], 4096, ALICE, 0)
    store.tick(101)
    assert status_of(store, key, 101) is MISS
    quick = store.reserve([key], 4096, BOB, 101)
    assert quick.statuses == [OK]
    assert quick.offsets != slow.offsets  # Alice may still be writing there
    assert store.commit(slow.write_id, b"a" * 16, ALICE, 102) is MISS
    assert store.reserve([key], 4096, ALICE, 102).statuses == [WRITING]  # Bob's put is not touched by Alice's end
    assert store.commit(quick.write_id, b"b" * 16, BOB, 103) is OK
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    (page,) = store.acquire([key], BOB, 10, 104).held
    assert isinstance(page, Page)
    assert page.checksum == b"b" * 16


def test_a_put_that_is_late_is_refused_even_if_nobody_ticked() -> None:
    store, (key, *_) = make_store(pending_ttl_ms=100)
    reserved = store.reserve([key], 4096, ALICE, 0)
    assert store.commit(reserved.write_id, b"a" * 16, ALICE, 100) is MISS
    assert store.tiering.dram.slabs.used_bytes == 0


def test_quarantine_ends_by_itself() -> None:
    store, (key, *_) = make_store(pending_ttl_ms=100, quarantine_ms=1000)
    store.reserve([key], 4096, ALICE, 0)
    store.tick(100)
    store.tick(1099)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    store.tick(1100)
    assert store.tiering.dram.slabs.used_bytes == 0


def test_a_client_that_dies_leaves_no_leases_and_no_puts() -> None:
    store, keys = make_store(pages=4)
    put(store, keys[0], 0)
    store.acquire([keys[0]], BOB, 30_000, 0)
    store.reserve([keys[1]], 4096, BOB, 0)
    store.close_owner(BOB)
    assert store.running_leases == 0
    assert status_of(store, keys[1], 0) is MISS
    assert [put(store, key, 1) for key in keys[2:6]] == [OK] * 4  # also the page that was leased could go


def test_leased_pages_never_leave_and_a_full_pool_is_busy() -> None:
    store, keys = make_store(pages=4)
    for key in keys[:4]:
        put(store, key, 0)
    lease = store.acquire(keys[:4], BOB, 5000, 1)
    assert put(store, keys[4], 2) is BUSY
    assert store.counters.no_room == 1
    store.release(lease.lease_id, BOB)
    assert put(store, keys[4], 3) is OK


def test_a_lease_ends_at_its_deadline_unless_it_is_renewed() -> None:
    store, keys = make_store(pages=4, max_lease_ms=1000)
    for key in keys[:4]:
        put(store, key, 0)
    lease = store.acquire(keys[:4], BOB, 99_999, 0)
    assert store.renew(lease.lease_id, BOB, 1000, 900)
    store.tick(1500)
    assert put(store, keys[4], 1500) is BUSY
    assert not store.renew(lease.lease_id, ALICE, 1000, 1500)
    store.tick(1900)
    assert put(store, keys[4], 1900) is OK
    assert not store.renew(lease.lease_id, BOB, 1000, 1901)
    assert store.leased_pages(lease.lease_id, BOB) is None
    assert store.counters.leases_expired == 1


def test_a_clock_that_jumps_back_ends_nothing_early_and_keeps_nothing_for_ever() -> None:
    store, (key, *_) = make_store(max_lease_ms=1000)
    put(store, key, 10_000)
    lease = store.acquire([key], BOB, 1000, 500)  # taken for 10,000
    store.tick(10_500)
    assert store.renew(lease.lease_id, BOB, 1000, 600)
    store.tick(11_500)
    assert store.running_leases == 0


def test_the_least_recently_used_page_goes_first() -> None:
    store, keys = make_store(pages=4, eviction=Lru())
    for time_ms, key in enumerate(keys[:4]):
        put(store, key, time_ms)
    status_of(store, keys[0], 10)
    store.leading([keys[1]], 11)  # being asked for counts too
    put(store, keys[4], 12)
    assert [status_of(store, key, 13) for key in keys[:5]] == [OK, OK, MISS, OK, OK]


def test_a_prompt_that_is_put_again_does_not_push_out_its_own_tail() -> None:
    store, keys = make_store(pages=4)
    for key in keys[1:4]:
        put(store, key, 0)
    put(store, keys[9], 1)
    reserved = store.reserve(keys[:4], 4096, ALICE, 2)
    assert reserved.statuses == [OK, EXISTS, EXISTS, EXISTS]


def test_tags_decide_under_semantic_classes() -> None:
    store, keys = make_store(pages=4, eviction=SemanticClasses())
    for time_ms, key in enumerate(keys[:4]):
        put(store, key, time_ms)
    assert store.tag(keys[:1], PageKind.SYSTEM_PROMPT) == 1
    assert store.tag([keys[3], keys[9]], PageKind.RESPONSE) == 1
    put(store, keys[4], 10)
    put(store, keys[5], 10)
    assert [status_of(store, key, 11) for key in keys[:6]] == [OK, MISS, OK, MISS, OK, OK]


def test_a_lowered_worth_counts_also_while_the_page_is_read() -> None:
    store, keys = make_store(pages=4, eviction=SemanticClasses())
    for key in keys[:4]:
        put(store, key, 0)
    lease = store.acquire([keys[2]], BOB, 1000, 5)
    store.tag([keys[2]], PageKind.RESPONSE)
    store.release(lease.lease_id, BOB)
    put(store, keys[4], 6)
    assert status_of(store, keys[2], 7) is MISS


def test_the_watermark_makes_room_ahead_of_need() -> None:
    store, keys = make_store(pages=16, high_watermark=0.75, low_watermark=0.5)
    for time_ms, key in enumerate(keys[:12]):
        put(store, key, time_ms)
    store.tick(20)
    assert store.counters.evicted == 0
    put(store, keys[12], 21)
    store.tick(22)
    assert store.tiering.dram.slabs.used_bytes == 8 * 4 * KIB
    assert store.counters.lost == store.counters.evicted == 5


def test_a_new_length_class_gets_the_coldest_slab() -> None:
    store, keys = make_store(pages=8, slab_pages=4)
    for time_ms, key in enumerate(keys[:8]):
        put(store, key, time_ms)
    status_of(store, keys[0], 50)  # keeps its slab
    assert put(store, keys[20], 60, length=8000) is OK
    assert [status_of(store, key, 61) for key in keys[:8]] == [OK] * 4 + [MISS] * 4


def test_a_slab_that_is_being_written_to_keeps_its_class() -> None:
    store, keys = make_store(pages=4, slab_pages=4)
    for key in keys[:3]:
        put(store, key, 0)
    store.reserve([keys[3]], 4096, ALICE, 0)
    assert put(store, keys[20], 1, length=8000) is BUSY
    assert [status_of(store, key, 2) for key in keys[:3]] == [OK] * 3


def test_a_busy_class_takes_colder_slabs_of_others() -> None:
    store, keys = make_store(pages=8, slab_pages=4)
    for key in keys[:8]:
        put(store, key, 0)
    for number in range(8, 20):
        put(store, keys[number], number, length=8000)
    here = [status_of(store, key, 99) for key in keys]
    assert here[:8] == [MISS] * 8  # all of the pool went to the class that is used
    assert here[8:20].count(OK) == 4


def test_pins_hold_and_end() -> None:
    store, keys = make_store(pages=8, max_pinned_share=0.25)
    for key in keys[:4]:
        put(store, key, 0)
    assert store.pin([keys[9]], 1000, 0).status is MISS
    pinned = store.pin([keys[0], keys[1], keys[0]], 1000, 0)
    assert (pinned.status, pinned.pages) == (OK, 2)
    assert store.pin([keys[2]], 1000, 0).status is BUSY  # over the cap: a refusal, not a lie
    alone = store.pin(keys[:4], 1000, 0)
    assert (alone.status, alone.pages) == (BUSY, 2)  # of four that the cap never has room for
    assert store.pin([keys[1]], 5000, 0).status is OK  # pinned already: costs nothing more
    for number in range(10, 30):
        put(store, keys[number], number)
    assert [status_of(store, key, 40) for key in keys[:3]] == [OK, OK, MISS]
    store.tick(1000)
    assert (store.pinned_bytes, len(store.pins())) == (4 * KIB, 1)
    store.tick(5000)
    assert (store.pinned_bytes, store.counters.pins_expired) == (0, 2)
    for number in range(30, 50):
        put(store, keys[number], 6000 + number)
    assert [status_of(store, key, 9000) for key in keys[:2]] == [MISS, MISS]


def test_a_pin_can_be_taken_back_once() -> None:
    store, (key, *_) = make_store()
    put(store, key, 0)
    pinned = store.pin([key], 1000, 0)
    assert store.unpin(pinned.pin_id)
    assert not store.unpin(pinned.pin_id)
    assert store.pinned_bytes == 0


def test_a_corrupt_page_is_gone_for_everyone_while_a_reader_lets_go() -> None:
    store, keys = make_store(pages=4)
    put(store, keys[0], 0)
    lease = store.acquire([keys[0]], BOB, 1000, 0)
    (page,) = lease.held
    assert isinstance(page, Page)
    assert not store.corrupt(keys[0], page.generation + 1)
    assert store.corrupt(keys[0], page.generation)
    assert not store.corrupt(keys[0], page.generation)
    assert status_of(store, keys[0], 1) is MISS
    assert put(store, keys[0], 1) is OK
    assert store.tiering.dram.slabs.used_bytes == 8 * KIB
    store.release(lease.lease_id, BOB)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    assert store.counters.corrupt_dram == 1


def test_a_page_handed_over_is_moved_until_it_comes_back() -> None:
    store, (key, other, *_) = make_store()
    put(store, key, 0)
    (page,) = store.catalog.find([key])
    assert page is not None
    store.hand_over(page, "node-b")
    acquired = store.acquire([other, key], BOB, 1000, 1)
    assert (acquired.statuses, acquired.moved) == ([MISS, MOVED], {1: "node-b"})
    put(store, key, 2)
    assert status_of(store, key, 3) is OK
    store.clear()
    assert status_of(store, key, 4) is MISS


def test_leading_runs_stop_at_the_first_gap() -> None:
    store, keys = make_store()
    for number in (0, 1, 3):
        put(store, keys[number], 0)
    found = store.leading(keys[:4], 1)
    assert (found.dram, found.local) == (2, 2)
    assert store.leading([], 1).dram == 0


def test_a_clear_may_be_limited_to_a_space() -> None:
    store, (key, handed_over, *_) = make_store()
    other = page_key(store.meet(PageSpace("other", "bf16", "page_first", 16)), digest(0))
    put(store, key, 0)
    put(store, other, 0)
    put(store, handed_over, 0)
    (page,) = store.catalog.find([handed_over])
    assert page is not None
    store.hand_over(page, "elsewhere")
    assert status_of(store, handed_over, 1) is MOVED
    assert store.clear(store.meet(SPACE)) == 1
    assert [status_of(store, each, 1) for each in (key, handed_over, other)] == [MISS, MISS, OK]
    put(store, handed_over, 2, variant=1)
    store.hand_over(page, "elsewhere")  # which says so late
    assert status_of(store, handed_over, 2) is OK


def test_a_clear_voids_what_is_being_written() -> None:
    store, (key, *_) = make_store(pending_ttl_ms=100, quarantine_ms=1000)
    other = page_key(store.meet(PageSpace("other", "bf16", "page_first", 16)), digest(0))
    stale = store.reserve([key], 4096, ALICE, 0)
    kept = store.reserve([other], 4096, ALICE, 0)
    store.clear(store.meet(SPACE))
    assert status_of(store, key, 1) is MISS
    fresh = store.reserve([key], 4096, BOB, 1, origin=Origin.PEER)
    assert fresh.statuses == [OK]
    assert fresh.offsets != stale.offsets  # Alice may still be writing there
    assert store.commit(stale.write_id, b"a" * 16, ALICE, 2) is MISS
    assert store.commit(kept.write_id, b"o" * 16, ALICE, 2) is OK
    store.clear(store.meet(SPACE))
    assert store.commit(fresh.write_id, b"b" * 16, BOB, 3) is MISS
    assert [status_of(store, each, 4) for each in (key, other)] == [MISS, OK]
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    assert store.counters.writes_expired == 0


def test_bytes_of_a_void_write_come_back_by_themselves() -> None:
    store, (key, *_) = make_store(pending_ttl_ms=100, quarantine_ms=1000)
    store.reserve([key], 4096, ALICE, 0)
    store.clear()
    store.clear()
    store.tick(1099)
    assert store.tiering.dram.slabs.used_bytes == 4 * KIB
    store.tick(1100)
    assert store.tiering.dram.slabs.used_bytes == 0


def test_impossible_puts_claim_nothing() -> None:
    store, keys = make_store()
    stranger = page_key(b"?" * 16, digest(0))
    with pytest.raises(KeyError, match="meet"):
        store.reserve([stranger], 10, ALICE, 0)
    with pytest.raises(ValueError, match="several spaces"):
        store.reserve([keys[0], stranger], 10, ALICE, 0)
    with pytest.raises(PageTooLarge):
        store.reserve(keys[:2], 1 << 20, ALICE, 0)
    with pytest.raises(ValueError, match="at least one byte"):
        store.reserve(keys[:2], 0, ALICE, 0)
    assert store.tiering.dram.slabs.used_bytes == 0


@pytest.mark.parametrize(
    "wrong",
    [{"high_watermark": 0.5, "low_watermark": 0.6}, {"high_watermark": 1.5}, {"max_pinned_share": 0.95}],
)
def test_settings_that_contradict_themselves_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        DramSettings(bytes=1 << 30, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 segments"):
        SsdSettings(bytes=1 << 28)
