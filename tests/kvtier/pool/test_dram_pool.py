"""Shared memory: the same bytes on both sides of a descriptor, sealed, and honest about its backing."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtier.pool import backing
from kvtier.pool.backing import HUGE_BYTES, Backing, BackingError
from kvtier.pool.dram_pool import DramPool


@pytest.fixture
def pool() -> Iterator[DramPool]:
    pool = DramPool.create(2 * HUGE_BYTES, Backing.PLAIN)
    yield pool
    pool.close()


def free_huge_pages() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("HugePages_Free"))


def test_another_mapping_sees_the_same_bytes(pool: DramPool) -> None:
    with mmap.mmap(pool.fd, pool.bytes) as theirs:
        pool.view(4096, 5)[:] = b"hello"
        assert theirs[4096:4101] == b"hello"
        theirs[-1] = 7
    assert pool.view(pool.bytes - 1, 1)[0] == 7


def test_nobody_can_shrink_or_grow_it(pool: DramPool) -> None:
    for size in (0, 4 * HUGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)


def test_it_is_prefaulted(pool: DramPool) -> None:
    assert os.fstat(pool.fd).st_blocks * 512 == pool.bytes


def test_without_prefault_nothing_is_taken_yet() -> None:
    pool = DramPool.create(2 * HUGE_BYTES, Backing.PLAIN, prefault=False)
    assert os.fstat(pool.fd).st_blocks == 0
    pool.close()


def test_auto_says_what_it_got() -> None:
    pool = DramPool.create(HUGE_BYTES)
    assert (pool.backing is Backing.PLAIN) == (pool.huge_bytes == 0)
    assert pool.backing is not Backing.AUTO
    pool.close()


def test_a_backing_that_cannot_be_had_says_what_to_set() -> None:
    too_much = (free_huge_pages() + 1) * HUGE_BYTES
    with pytest.raises(BackingError, match="nr_hugepages"):
        DramPool.create(too_much, Backing.HUGETLB)


def test_sizes_are_whole_huge_pages() -> None:
    with pytest.raises(ValueError, match="multiple"):
        DramPool.create(HUGE_BYTES + 4096)


def test_a_large_pool_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(backing, "_STEP_BYTES", HUGE_BYTES)
    with caplog.at_level("INFO"):
        DramPool.create(3 * HUGE_BYTES, Backing.PLAIN).close()
        DramPool.create(HUGE_BYTES, Backing.PLAIN).close()
    assert caplog.messages == [f"prefaulting L3: {taken} of 6 MiB taken" for taken in (0, 2, 4)]
