"""Slots: aligned, disjoint, all of the pool usable, and slabs that change class once they are empty."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtier.store.slabs import GRANULE_BYTES, PageTooLarge, SlabAllocator, class_bytes

lengths = st.sampled_from([1, 4096, 4097, 9000, 16_384, 40_000])


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), lengths, st.integers(0, 100)), max_size=200))
def test_slots_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    slabs = SlabAllocator(10 * 65_536 + 5000, 65_536)
    live: dict[int, int] = {}
    for free, length, pick in steps:
        if free and live:
            offset = sorted(live)[pick % len(live)]
            slabs.free([offset])
            del live[offset]
        else:
            found = slabs.allocate(length, 1 + pick % 9)
            assert len(found) <= 1 + pick % 9
            live.update((offset, class_bytes(length)) for offset in found)
    extents = sorted(live.items())
    assert all(offset % GRANULE_BYTES == 0 for offset in live)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(extents))
    assert all(offset + size <= slabs.capacity_bytes for offset, size in extents)
    assert slabs.used_bytes == sum(live.values())
    slabs.free(list(live))
    assert slabs.used_bytes == 0
    for length in (1, 65_536):
        offsets = slabs.allocate(length, 1000)
        assert len(set(offsets)) == len(offsets) == slabs.capacity_bytes // class_bytes(length)
        assert not slabs.allocate(length, 1)
        slabs.free(offsets)


def test_a_slab_serves_one_class_until_it_is_empty() -> None:
    slabs = SlabAllocator(2 * 16_384, 16_384)
    small = slabs.allocate(4096, 5)
    assert not slabs.allocate(8192, 1)
    slabs.free(small[4:])
    assert len(slabs.allocate(8192, 3)) == 2
    assert [slabs.class_of(slab) for slab in (0, 1)] == [4096, 8192]


def test_what_cannot_fit_is_refused() -> None:
    slabs = SlabAllocator(32_768, 16_384)
    with pytest.raises(PageTooLarge, match="raise slab_bytes"):
        slabs.check(16_385)
    with pytest.raises(ValueError, match="at least one byte"):
        slabs.check(0)
    for pool, slab in ((4096, 8192), (8192, 5000)):
        with pytest.raises(ValueError, match="slab_bytes"):
            SlabAllocator(pool, slab)


@pytest.mark.parametrize("length", [-1, 0, 16_385, 1 << 62])
def test_what_cannot_fit_takes_no_slab(length: int) -> None:
    slabs = SlabAllocator(32_768, 16_384)
    with pytest.raises((PageTooLarge, ValueError)):
        slabs.allocate(length, 1)
    assert len(slabs.allocate(16_384, 2)) == 2
