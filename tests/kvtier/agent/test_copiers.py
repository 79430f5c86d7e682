"""Both ways to copy between an engine and shared memory: equal bytes, equal checksums, and nothing outside of the pool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from agent_rig import EngineMemory, content

from kvtier.client.copier import Copier, PortableCopier, StoredPage, grouped, spread
from kvtier.client.memory import SharedMemory
from kvtier.client.native_copier import NativeCopier
from kvtier.copy.portable import PortableCopies
from kvtier.page.checksum import page_checksum

POOL_BYTES = 8 << 20
PAGE_BYTES = 32_768


@pytest.fixture
def memory() -> SharedMemory:
    fd = os.memfd_create("test")
    os.ftruncate(fd, POOL_BYTES)
    return SharedMemory(fd, POOL_BYTES)


@pytest.fixture(params=["portable-1", "portable-3", "grouped-1", "grouped-3"])
def copier(request: pytest.FixtureRequest) -> Iterator[Copier]:
    """`grouped` is the native one's way with portable copies under it: the native ones have tests of their own."""
    kind, _, threads = request.param.partition("-")
    made: Copier = (
        PortableCopier(int(threads)) if kind == "portable" else NativeCopier([PortableCopies() for _ in range(int(threads))])
    )
    yield made
    made.close()


def stored(engine: EngineMemory, seed: int = 1) -> list[StoredPage]:
    """Scattered over the pool."""
    offsets = Random(seed).sample(range(0, POOL_BYTES, PAGE_BYTES), len(engine.numbers))
    return [StoredPage(offset, pieces) for offset, pieces in zip(offsets, engine.pages, strict=True)]


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_what_was_put_is_got(memory: SharedMemory, copier: Copier, count: int) -> None:
    source, target = EngineMemory(range(count)), EngineMemory(range(count), filled=False)
    wanted = [page_checksum(content(number)) for number in range(count)]
    assert copier.put(memory, stored(source)) == wanted
    assert copier.get(memory, stored(target)) == wanted
    assert target.right() == [True] * count


def test_a_get_hashes_what_it_copied(memory: SharedMemory, copier: Copier) -> None:
    source, target = EngineMemory([1]), EngineMemory([1], filled=False)
    (page,) = stored(source)
    (checksum,) = copier.put(memory, [page])
    memory.view(page.offset, 1)[0] ^= 1
    assert copier.get(memory, stored(target)) != [checksum]


@pytest.mark.parametrize("offset", [-1, POOL_BYTES - 1])
def test_nothing_outside_of_the_pool_is_touched(memory: SharedMemory, copier: Copier, offset: int) -> None:
    engine = EngineMemory([1])
    for copy in (copier.put, copier.get):
        with pytest.raises(ValueError, match="do not lie"):
            copy(memory, [StoredPage(offset, engine.pieces(0))])


def test_memory_is_mapped_ahead(memory: SharedMemory) -> None:
    assert memory.populated.wait(5)


def test_pages_are_dealt_out_in_order() -> None:
    pages = [StoredPage(index, EngineMemory([0], filled=False).pages[0]) for index in range(40)]
    assert [page for part in spread(pages, 3) for page in part] == pages
    assert [len(part) for part in spread(pages, 3)] == [14, 14, 12]
    assert spread(pages[:1], 3) == [pages[:1]]
    assert [len(group) for group in grouped(pages, 3 * PAGE_BYTES)] == [3] * 13 + [1]
    assert [len(group) for group in grouped(pages[:3], 1)] == [1, 1, 1]
