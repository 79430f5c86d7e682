"""Runs: pages that were stored together stay one thing until something tells them apart, and nobody can see the difference."""

from __future__ import annotations

import pytest
from store_model import ALICE, BOB, KIB, SPACE, checksum, make_store, put, seen

from kvtier.page.key import DIGEST_BYTES, PageKey, PageKeys, page_key
from kvtier.page.status import Status
from kvtier.policies.eviction import ReusePerByte
from kvtier.store.node_store import NodeStore
from kvtier.store.page import Page
from kvtier.store.run import Run

OK, MISS, BUSY, EXISTS, WRITING = Status.OK, Status.MISS, Status.BUSY, Status.EXISTS, Status.WRITING


def put_together(store: NodeStore, keys: list[PageKey], now_ms: float, depth: int = 0) -> list[int]:
    """Offsets."""
    reserved = store.reserve(keys, 4096, ALICE, now_ms, depth=depth)
    assert reserved.statuses == [OK] * len(keys)
    checksums = b"".join(checksum(number) for number in range(len(keys)))
    assert store.commit(reserved.write_id, checksums, ALICE, now_ms) is OK
    return list(reserved.offsets)


def test_what_is_stored_together_is_leased_as_one() -> None:
    store, keys = make_store()
    offsets = put_together(store, keys[:3], 0, depth=5)
    (run,) = store.acquire(keys[:3], BOB, 1000, 1).held
    assert isinstance(run, Run)
    assert [(page.key, page.offset, page.checksum) for page in seen([run])] == [
        (key, offset, checksum(number)) for number, (key, offset) in enumerate(zip(keys, offsets, strict=False))
    ]
    assert (run.depth, run.hits, run.holds) == (7, 1, 1)
    assert len(store.catalog) == 3


def test_reading_part_of_a_run_tells_it_apart_for_those_who_hold_it_too() -> None:
    store, keys = make_store(pages=4)
    put_together(store, keys[:4], 0)
    whole = store.acquire(keys[:4], BOB, 1000, 1)
    part = store.acquire(keys[1:3], BOB, 1000, 2)
    assert [page.key for page in part.held if isinstance(page, Page)] == keys[1:3]
    assert [page.holds for page in store.catalog.pages()] == [1, 2, 2, 1]
    assert store.leased_pages(whole.lease_id, BOB) == store.catalog.find(keys[:4])
    store.release(whole.lease_id, BOB)
    assert store.reserve(keys[4:8], 4096, ALICE, 3).statuses == [OK, OK, BUSY, BUSY]
    store.release(part.lease_id, BOB)
    assert store.reserve(keys[8:10], 4096, ALICE, 4).statuses == [OK, OK]


def test_a_prompt_loses_its_tail_first_and_only_as_much_as_is_needed() -> None:
    store, keys = make_store(pages=8)
    put_together(store, keys[:8], 0)
    put_together(store, keys[10:13], 1)
    assert store.leading(keys[:8], 2).dram == 5
    (run,) = store.acquire(keys[:5], BOB, 1000, 3).held
    assert isinstance(run, Run)
    assert (store.counters.evicted, store.counters.lost, len(store.catalog)) == (3, 3, 8)
    assert store.reserve(keys[5:8], 4096, ALICE, 4).statuses == [OK] * 3


def test_what_is_left_of_a_run_is_worth_what_it_is_now() -> None:
    """Under a policy by which deeper pages are worth more."""
    store, keys = make_store(pages=8, eviction=ReusePerByte(ms_per_token=1e-3, ms_per_token2=1.0))
    put_together(store, keys[:4], 0)
    put_together(store, keys[10:14], 0, depth=50)
    put_together(store, keys[20:23], 0)
    assert put(store, keys[30], 0, depth=50) is OK
    assert [store.leading(keys[first:], 1).dram for first in (0, 10, 20, 30)] == [0, 4, 3, 1]


def test_more_of_a_prompt_is_a_run_of_its_own_behind_what_is_there() -> None:
    store, keys = make_store()
    put_together(store, keys[:2], 0)
    reserved = store.reserve(keys[:5], 4096, ALICE, 1)
    assert reserved.statuses == [EXISTS, EXISTS, OK, OK, OK]
    assert store.reserve(keys[3:6], 4096, BOB, 1).statuses == [WRITING, WRITING, OK]
    assert store.commit(reserved.write_id, b"c" * 48, ALICE, 2) is OK
    *_, run = store.acquire(keys[:5], BOB, 1000, 3).held
    assert isinstance(run, Run)
    assert list(run.depths) == [2, 3, 4]


def test_what_is_put_once_more_stays_one() -> None:
    store, keys = make_store(pages=8)
    put_together(store, keys[:4], 0)
    put_together(store, keys[4:7], 0)
    assert store.reserve(keys[:4], 4096, BOB, 1).statuses == [EXISTS] * 4
    assert store.reserve(keys[:8], 4096, BOB, 1).statuses == [EXISTS] * 7 + [OK]
    assert store.reserve([keys[0], *keys[:4]], 4096, BOB, 1).statuses == [EXISTS] * 5
    assert {(entry.last_ms, type(entry)) for entry in store.catalog.entries()} == {(1, Page), (1, Run)}
    assert store.counters.already_stored == 16
    assert store.tiering.dram.slabs.used_bytes == 8 * 4 * KIB


@pytest.mark.parametrize("together", [1, 3])
def test_of_two_pages_with_one_id_the_first_is_kept_and_never_taken_for_the_other(together: int) -> None:
    store, keys = make_store()
    put_together(store, keys[:together], 0)
    digest = keys[0][-DIGEST_BYTES:]
    double = page_key(store.meet(SPACE), digest[:8] + bytes(DIGEST_BYTES - 8))
    assert store.reserve([double], 4096, ALICE, 1).statuses == [BUSY]
    assert store.acquire([double], BOB, 1000, 1).statuses == [MISS]
    assert store.catalog.get(double) is None
    assert store.leading([double], 1).local == 0
    assert store.acquire(keys[:together], BOB, 1000, 2).statuses == [OK] * together
    store.clear()
    assert store.reserve([double], 4096, ALICE, 3).statuses == [OK]
    assert store.reserve([keys[0]], 4096, BOB, 3).statuses == [WRITING]


def test_a_run_of_another_order_is_not_the_same() -> None:
    store, keys = make_store()
    offsets = put_together(store, keys[:2], 0)
    held = store.acquire([keys[1], keys[0]], BOB, 1000, 1).held
    assert [page.offset for page in held if isinstance(page, Page)] == [offsets[1], offsets[0]]


@pytest.mark.parametrize("ask", [[0, 1, 2, 0], [9, 0, 1, 2, 2], [0, 1, 2, 9, 0, 1], [9, 0, 1, 2, 9, 0, 1, 2]])
def test_a_page_that_is_named_twice_is_held_twice(ask: list[int]) -> None:
    store, keys = make_store(pages=8)
    put(store, keys[9], 0)
    offsets = put_together(store, keys[:3], 0)
    acquired = store.acquire([keys[number] for number in ask], BOB, 1000, 1)
    assert [page.key for page in seen(acquired.held)] == [keys[number] for number in ask]
    assert {page.key: page.holds for page in store.catalog.pages()} == {keys[number]: ask.count(number) for number in {*ask, 9}}
    assert not set(offsets) & set(store.reserve(keys[20:28], 4096, ALICE, 2).offsets)
    store.release(acquired.lease_id, BOB)
    assert not any(page.holds for page in store.catalog.pages())


def test_clearing_a_held_run_gives_its_bytes_back_with_the_last_lease() -> None:
    store, keys = make_store()
    put_together(store, keys[:3], 0)
    lease = store.acquire(keys[:3], BOB, 1000, 1)
    assert store.clear() == 3
    assert store.tiering.dram.slabs.used_bytes == 12 * KIB
    store.release(lease.lease_id, BOB)
    assert store.tiering.dram.slabs.used_bytes == 0


@pytest.mark.parametrize(("read", "gone", "whole"), [(False, range(4), range(6, 12)), (True, range(8, 12), range(6))])
def test_a_slab_for_another_length_costs_no_more_than_the_runs_that_lie_in_it(read: bool, gone: range, whole: range) -> None:
    """Of two runs in three slabs the older one's, or where that is read the other's, but never the slab of both."""
    store, keys = make_store(pages=12)
    put_together(store, keys[:6], 0)
    put_together(store, keys[6:12], 1)
    if read:
        store.acquire(keys[:6], BOB, 1000, 2)
    assert put(store, keys[20], 3, length=8000) is OK
    (run,) = [entry for entry in store.catalog.entries() if isinstance(entry, Run)]
    assert list(run.keys) == [keys[number] for number in whole]
    assert [number for number in range(12) if store.catalog.get(keys[number]) is None] == list(gone)


def test_a_clear_takes_a_run_that_nobody_reads_as_a_whole() -> None:
    store, keys = make_store()
    put_together(store, keys[:3], 0)
    put_together(store, keys[3:5], 0)
    put(store, keys[9], 0)
    store.acquire(keys[:3], BOB, 1000, 1)
    (idle,) = [run for run in store.catalog.entries() if isinstance(run, Run) and not run.holds]
    assert store.clear() == 6
    assert (idle.pages, len(idle), len(store.catalog)) == (None, 0, 0)
    assert store.tiering.dram.slabs.used_bytes == 12 * KIB
    assert (store.counters.evicted, store.counters.lost) == (0, 0)
    store.close_owner(BOB)
    assert store.tiering.dram.slabs.used_bytes == 0


def test_keys_are_a_sequence() -> None:
    _, keys = make_store()
    several = PageKeys.of(keys[:5])
    assert (len(several), several[1], several[-1]) == (5, keys[1], keys[4])
    assert list(several) == keys[:5]
    assert list(several[1:3]) == keys[1:3]
    assert [several.names_at(index, several[1:3]) for index in range(5)] == [False, True, False, False, False]
    with pytest.raises(IndexError):
        several[5]
    with pytest.raises(ValueError, match="several spaces"):
        PageKeys.of([keys[0], page_key(bytes(16), bytes(32))])
