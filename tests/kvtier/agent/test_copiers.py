"""All ways to copy between an engine and shared memory: equal bytes, xxhash's checksums, nothing outside of the pool."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Iterator
from random import Random

import pytest
from agent_rig import EngineMemory, content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtier.client.copier import Copier, PortableCopier, spread
from kvtier.client.engine_pages import EnginePages
from kvtier.client.memory import SharedMemory
from kvtier.client.native_copier import NativeCopier
from kvtier.copy.native import native_module
from kvtier.page.checksum import page_checksum

POOL_BYTES = 8 << 20
PAGE_BYTES = 32_768
native = native_module()
WAYS = ["libc-1", "libc-3", *([f"{isa}-{threads}" for isa in native.isas() for threads in (1, 3)] if native else [])]
shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)


@pytest.fixture(scope="module")
def memory() -> SharedMemory:
    fd = os.memfd_create("test")
    os.ftruncate(fd, POOL_BYTES)
    return SharedMemory(fd, POOL_BYTES)


@pytest.fixture(params=WAYS, scope="module")
def copier(request: pytest.FixtureRequest) -> Iterator[Copier]:
    way, _, threads = request.param.partition("-")
    made: Copier = PortableCopier(int(threads))
    if way != "libc":
        assert native is not None
        made = NativeCopier(native.PageCopier(int(threads), way))
    yield made
    made.close()


def scattered(count: int, seed: int = 1) -> list[int]:
    """Offsets all over the pool."""
    return Random(seed).sample(range(0, POOL_BYTES, PAGE_BYTES), count)


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_what_was_put_is_got(memory: SharedMemory, copier: Copier, count: int) -> None:
    source, target = EngineMemory(range(count)), EngineMemory(range(count), filled=False)
    wanted = b"".join(page_checksum(content(number)) for number in range(count))
    assert copier.put(memory, scattered(count), source.pages) == wanted
    assert copier.get(memory, scattered(count), target.pages) == wanted
    assert target.right() == [True] * count


@shared_fixture
@given(
    # around the ends of a word, a stripe, a block, what XXH3 hashes otherwise, what is streamed past the caches
    sizes=st.lists(
        st.one_of(
            st.integers(0, 200),
            st.sampled_from([240, 241, 1023, 1024, 1025, 16_384, 20_000]).flatmap(lambda at: st.integers(at, at + 70)),
        ),
        min_size=1,
        max_size=5,
    ).filter(any),
    count=st.integers(1, 6),
    shift=st.integers(0, 70),
    gap=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_any_pieces_anywhere(
    memory: SharedMemory, copier: Copier, sizes: list[int], count: int, shift: int, gap: int, seed: int
) -> None:
    page_bytes = sum(sizes)
    engine = bytearray(Random(seed).randbytes(count * (page_bytes + gap * len(sizes)) + shift))
    at = ctypes.addressof(ctypes.c_char.from_buffer(engine)) + shift
    addresses = array("q")
    for size in sizes * count:
        addresses.append(at)
        at += size + gap
    pages = EnginePages(addresses, sizes)
    offsets = [shift * 3 + number * (page_bytes + gap) for number in range(count)]
    end = offsets[-1] + page_bytes
    memory.view(0, end + 64)[:] = b"\xaa" * (end + 64)
    wanted = [b"".join(ctypes.string_at(*piece) for piece in pages.pieces(number)) for number in range(count)]
    checksums = b"".join(map(page_checksum, wanted))

    assert copier.put(memory, offsets, pages) == checksums
    lying = bytearray(b"\xaa" * (end + 64))
    for offset, page in zip(offsets, wanted, strict=True):
        lying[offset : offset + page_bytes] = page
    assert memory.view(0, end + 64) == lying

    before = bytes(engine)
    for address, size in zip(addresses, sizes * count, strict=True):
        ctypes.memset(address, 0x55, size)
    assert copier.get(memory, offsets, pages) == checksums
    assert engine == before


def test_a_get_hashes_what_it_copied(memory: SharedMemory, copier: Copier) -> None:
    source, target = EngineMemory([1]), EngineMemory([1], filled=False)
    (offset,) = scattered(1)
    checksum = copier.put(memory, [offset], source.pages)
    memory.view(offset, 1)[0] ^= 1
    assert copier.get(memory, [offset], target.pages) == page_checksum(target.page(0)) != checksum


@pytest.mark.parametrize("offset", [-1, POOL_BYTES - 1, POOL_BYTES + PAGE_BYTES])
@pytest.mark.parametrize("size", [100, PAGE_BYTES])
def test_nothing_outside_of_the_pool_is_touched(memory: SharedMemory, copier: Copier, offset: int, size: int) -> None:
    engine = ctypes.create_string_buffer(size)
    pages = EnginePages.striped([(ctypes.addressof(engine), size)], 1)
    for copy in (copier.put, copier.get):
        with pytest.raises(ValueError, match="do not lie"):
            copy(memory, [offset], pages)


def test_memory_is_mapped_ahead(memory: SharedMemory) -> None:
    assert memory.populated.wait(5)


def test_pages_are_dealt_out_in_order() -> None:
    assert spread(40, PAGE_BYTES, 3) == [slice(0, 14), slice(14, 28), slice(28, 42)]
    assert spread(1, PAGE_BYTES, 3) == [slice(0, 1)]
    assert spread(0, PAGE_BYTES, 3) == []
    pages = EngineMemory(range(40), filled=False).pages
    dealt = [pages.part(part) for part in spread(40, PAGE_BYTES, 3)]
    assert [len(part) for part in dealt] == [14, 14, 12]
    assert [part.pieces(0) for part in dealt] == [pages.pieces(0), pages.pieces(14), pages.pieces(28)]


def test_pages_are_chosen_by_number() -> None:
    pages = EngineMemory(range(5), filled=False).pages
    chosen = pages.chosen([1, 3, 4])
    assert [chosen.pieces(number) for number in range(len(chosen))] == [pages.pieces(number) for number in (1, 3, 4)]
    assert chosen.page_bytes == PAGE_BYTES
    assert pages.chosen(range(5)) is pages
    with pytest.raises(ValueError, match="no whole number"):
        EnginePages(array("q", [1, 2, 3]), [8, 8])
