"""One suite for every way of copying pages: bit for bit, with guard bytes around whatever is written."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtier.copy.base import Move, PageCopies

# around each threshold: a vector, a cache line, what is streamed, what is interleaved, what is cut into jobs
SIZES = [1, 31, 64, 1000, 4096, 16384, 16385, 32768, 65536, 65600, 262144, 524288, 600_001]
MARGIN = 70
shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def pool_of(pages: int, page_bytes: int) -> bytearray:
    return bytearray(random.Random(7).randbytes(pages * page_bytes))


def gathered(pool: bytes | bytearray, pages: Sequence[int], page_bytes: int) -> bytes:
    return b"".join(pool[page * page_bytes : (page + 1) * page_bytes] for page in pages)


def address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize("offset", [0, 1, 63])
@pytest.mark.parametrize("page_bytes", SIZES)
def test_gather_is_exact_and_writes_nothing_else(copies: PageCopies, page_bytes: int, offset: int) -> None:
    pool = pool_of(7, page_bytes)
    pages = [3, 0, 6, 3, 5]
    target = bytearray(b"\xaa" * (MARGIN * 2 + len(pages) * page_bytes))
    packed = memoryview(target)[offset : offset + len(pages) * page_bytes]
    copies.gather(packed, bytes(pool), pages, page_bytes)
    expected = b"\xaa" * offset + gathered(pool, pages, page_bytes)
    assert target == expected + b"\xaa" * (len(target) - len(expected))


@pytest.mark.parametrize("page_bytes", SIZES)
def test_scatter_is_exact_and_leaves_other_pages(copies: PageCopies, page_bytes: int) -> None:
    pool = pool_of(7, page_bytes)
    before = bytes(pool)
    pages = [6, 0, 3, 1]
    packed = random.Random(8).randbytes(len(pages) * page_bytes)
    copies.scatter(pool, packed, pages, page_bytes)
    assert gathered(pool, pages, page_bytes) == packed
    assert gathered(pool, [2, 4, 5], page_bytes) == gathered(before, [2, 4, 5], page_bytes)


@pytest.mark.parametrize("length", [0, *SIZES])
def test_move_is_exact(copies: PageCopies, length: int) -> None:
    source, target = pool_of(3, length + 5), bytearray(3 * (length + 5))
    moves = [Move(address_of(target) + n * (length + 5) + 2, address_of(source) + (2 - n) * length, length) for n in range(3)]
    copies.move(moves)
    for n in range(3):
        at = n * (length + 5) + 2
        assert target[at : at + length] == source[(2 - n) * length : (3 - n) * length]
        assert target[at - 2 : at] + target[at + length : at + length + 3] == bytes(5)


def test_nothing_to_do(copies: PageCopies) -> None:
    copies.gather(bytearray(4), b"abcd", [], 4)
    copies.scatter(bytearray(4), b"", [], 4)
    copies.move([])


@shared_fixture
@given(st.data())
def test_any_pages(copies: PageCopies, data: st.DataObject) -> None:
    page_bytes = data.draw(st.integers(1, 40_000))
    held = data.draw(st.integers(1, 12))
    pages = data.draw(st.lists(st.integers(0, held - 1), max_size=30))
    pool = pool_of(held, page_bytes) + bytearray(page_bytes - 1)  # a part of a page is none
    packed = bytearray(len(pages) * page_bytes)
    copies.gather(packed, pool, pages, page_bytes)
    assert packed == gathered(pool, pages, page_bytes)
    target, distinct = bytearray(len(pool)), list(dict.fromkeys(pages))
    copies.scatter(target, gathered(pool, distinct, page_bytes), distinct, page_bytes)
    assert gathered(target, distinct, page_bytes) == gathered(pool, distinct, page_bytes)


@shared_fixture
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(1, 64))
def test_any_numbers_are_refused_or_copied(copies: PageCopies, pages: list[int], page_bytes: int) -> None:
    pool, packed = pool_of(5, page_bytes), bytearray(20 * page_bytes)
    if all(0 <= page < 5 for page in pages):
        copies.gather(packed, pool, pages, page_bytes)
        assert packed[: len(pages) * page_bytes] == gathered(pool, pages, page_bytes)
    else:
        with pytest.raises(IndexError, match="is not one of 5"):
            copies.gather(packed, pool, pages, page_bytes)
        assert packed == bytes(len(packed))


@pytest.mark.parametrize("page", [-1, 5, 2**40])
def test_pages_outside_are_refused_before_anything_moves(copies: PageCopies, page: int) -> None:
    pool, packed = bytearray(b"p" * 20), bytearray(b"k" * 20)
    with pytest.raises(IndexError, match=f"page {page} is not one of 5"):
        copies.gather(packed, pool, [0, page], 4)
    with pytest.raises(IndexError, match=f"page {page} is not one of 5"):
        copies.scatter(pool, packed, [0, page], 4)
    assert pool == b"p" * 20
    assert packed == b"k" * 20


def test_what_makes_no_sense_is_refused(copies: PageCopies) -> None:
    memory = bytearray(64)
    with pytest.raises(ValueError, match="2 pages of 4 bytes do not fit 7 bytes"):
        copies.gather(bytearray(7), memory, [0, 1], 4)
    with pytest.raises(ValueError, match="page_bytes must be above 0"):
        copies.gather(bytearray(7), memory, [0], 0)
    with pytest.raises(ValueError, match="page_bytes must be above 0"):
        copies.scatter(bytearray(7), memory, [0], -4)
    with pytest.raises(ValueError, match="page 1 is to be written twice"):
        copies.scatter(memory, bytes(12), [1, 2, 1], 4)
    with pytest.raises(TypeError):
        copies.gather(bytes(8), memory, [0], 4)  # not to be written


def test_overlaps_are_refused(copies: PageCopies) -> None:
    memory = bytearray(64)
    view, at = memoryview(memory), address_of(memory)
    with pytest.raises(ValueError, match="overlap the pool"):
        copies.gather(view[:16], view[12:], [0], 4)
    with pytest.raises(ValueError, match="overlap the pool"):
        copies.scatter(view[:16], view[12:], [0], 4)
    copies.gather(view[:16], view[16:], [0], 4)
    with pytest.raises(ValueError, match="two moves write the same bytes"):
        copies.move([Move(at + 8, at + 40, 8), Move(at, at + 50, 9)])
    for bad in ([Move(at, at + 4, 8)], [Move(at, at + 16, 8), Move(at + 23, at + 40, 4)], [Move(at + 4, at, 8)]):
        with pytest.raises(ValueError, match="a move writes bytes that another one, or itself, reads"):
            copies.move(bad)
    copies.move([Move(at, at + 16, 8), Move(at + 8, at + 16, 8), Move(at + 24, at + 16, 8)])
    with pytest.raises(ValueError, match="below 0"):
        copies.move([Move(at, at + 16, -1)])


def test_callers_may_share_one(copies: PageCopies) -> None:
    pool = pool_of(16, 65536)
    wrong: list[int] = []

    def caller(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(5):
            pages = [rng.randrange(16) for _ in range(12)]
            packed = bytearray(12 * 65536)
            copies.gather(packed, pool, pages, 65536)
            if packed != gathered(pool, pages, 65536):
                wrong.append(seed)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
