"""A hundred thousand flipped bits, in DRAM and on SSD: none is served."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from agent_rig import SPACE, agent_here, config_of, digest

from kvtier.agent.ssd_io import Wanted, read_pages
from kvtier.client.engine_pages import EnginePages
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.checksum import page_checksum
from kvtier.page.key import page_key
from kvtier.page.kind import PageKind
from kvtier.page.status import Status
from kvtier.ssd.layout import PageToWrite
from kvtier.ssd.segments import SsdSegments

pytestmark = pytest.mark.slow

PAGE_BYTES = 4096
_UNHURRIED = ClientSettings(connect_s=60, look_s=60, get_s=60, put_s=60)  # hundreds of pages are reported in one get
DRAM_FLIPS = 10_000
SSD_FLIPS = 90_000
PAGES = 500


async def test_in_dram(tmp_path: Path, connect: Callable[..., PageClient]) -> None:
    """Each on a page of its own, found by the engine that reads it and then by the agent that is told."""
    rng = Random(5)
    source = ctypes.create_string_buffer(rng.randbytes(PAGES * PAGE_BYTES), PAGES * PAGE_BYTES)
    target = ctypes.create_string_buffer(PAGES * PAGE_BYTES)
    pages, targets = (EnginePages.striped([(ctypes.addressof(buffer), PAGE_BYTES)], PAGES) for buffer in (source, target))
    digests = b"".join(digest(number) for number in range(PAGES))
    async with agent_here(config := config_of(tmp_path)) as agent:
        client, space = connect(config, settings=_UNHURRIED), agent.store.meet(SPACE)
        for _ in range(DRAM_FLIPS // PAGES):
            assert all(await asyncio.to_thread(client.put, digests, pages))
            for number in range(PAGES):
                page = agent.store.catalog.get(page_key(space, digest(number)))
                assert page is not None
                agent.pool.view(page.offset, PAGE_BYTES)[rng.randrange(PAGE_BYTES)] ^= 1 << rng.randrange(8)
            assert not any(await asyncio.to_thread(client.get, digests, targets))
        assert agent.store.counters.corrupt_dram == client.counters.pages_corrupt == DRAM_FLIPS


def test_on_ssd(tmp_path: Path) -> None:
    rng = Random(6)
    segments = SsdSegments(tmp_path, 8 << 20, 4)
    scratch = memoryview(mmap.mmap(-1, PAGE_BYTES))
    stored = []
    for number in range(PAGES):
        scratch[:] = rng.randbytes(PAGE_BYTES)
        page = PageToWrite(SPACE, digest(number), PAGE_BYTES, page_checksum(scratch), PageKind.USER_QUERY, 0, scratch)
        (place,) = segments.append([page])
        stored.append(Wanted(place, PAGE_BYTES, page.checksum, memoryview(mmap.mmap(-1, PAGE_BYTES))))
    assert read_pages(segments, stored) == [Status.OK] * PAGES
    (path,) = tmp_path.glob("*.lbkv")
    whole = path.read_bytes()
    for _ in range(SSD_FLIPS // PAGES):
        spoilt = bytearray(whole)
        for wanted in stored:
            spoilt[wanted.place.offset + rng.randrange(PAGE_BYTES)] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        assert read_pages(segments, stored) == [Status.CORRUPT] * PAGES
    path.write_bytes(whole)
    assert read_pages(segments, stored) == [Status.OK] * PAGES
    segments.close()
