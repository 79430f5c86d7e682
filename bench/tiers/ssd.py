"""Pages read back from SSD with their checksums, beside bare reads of the same file by as many threads."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from kvtier.agent.ssd_io import Wanted, read_pages
from kvtier.page.checksum import page_checksum
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.ssd.layout import PageToWrite
from kvtier.ssd.segments import SsdSegments
from kvtier.store.page import SsdPlace

_PAGE_BYTES = 1 << 20
_PAGES = 256
_SEGMENT_BYTES = 128 << 20
_THREADS = 4
_BATCH = 8


class SsdRatio(msgspec.Struct, frozen=True):
    ratio: float
    device_gb_per_s: float


class _Stored(msgspec.Struct, frozen=True):
    place: SsdPlace
    checksum: bytes


def ssd_ratio(folder: Path, rounds: int, seed: int) -> SsdRatio:
    """Takes `_PAGES` MiB in `folder`. Raises OSError and `SsdFull`."""
    segments = SsdSegments(folder, _SEGMENT_BYTES, 8)
    scratch = [memoryview(mmap.mmap(-1, _PAGE_BYTES)) for _ in range(_PAGES)]
    try:
        stored = _write(segments, scratch, Random(seed))
        ratios, rates = [], []
        with ThreadPoolExecutor(_THREADS) as threads:
            for number in range(rounds):
                order = Random(seed + number).sample(range(_PAGES), _PAGES)
                ours_s = _ours(segments, [stored[page] for page in order], scratch, threads)
                bare_s = _bare(folder, [stored[page].place for page in order], scratch, threads)
                ratios.append(bare_s / ours_s)
                rates.append(_PAGES * _PAGE_BYTES / bare_s / 1e9)
        return SsdRatio(median(ratios), median(rates))
    finally:
        segments.close()


def _write(segments: SsdSegments, scratch: Sequence[memoryview], rng: Random) -> list[_Stored]:
    space = PageSpace("bench", "bytes", "flat", 16)
    stored = []
    for start in range(0, _PAGES, _BATCH):
        pages = []
        for page in scratch[start : start + _BATCH]:
            page[:] = rng.randbytes(_PAGE_BYTES)
            pages.append(PageToWrite(space, rng.randbytes(32), _PAGE_BYTES, page_checksum(page), PageKind.USER_QUERY, 0, page))
        places = segments.append(pages)
        stored += [_Stored(place, page.checksum) for place, page in zip(places, pages, strict=True)]
    return stored


def _ours(
    segments: SsdSegments, stored: Sequence[_Stored], scratch: Sequence[memoryview], threads: ThreadPoolExecutor
) -> float:
    wanted = [Wanted(each.place, _PAGE_BYTES, each.checksum, page) for each, page in zip(stored, scratch, strict=True)]
    batches = [wanted[start : start + _BATCH] for start in range(0, len(wanted), _BATCH)]
    started_s = time.perf_counter()
    statuses = [status for batch in threads.map(lambda pages: read_pages(segments, pages), batches) for status in batch]
    spent_s = time.perf_counter() - started_s
    assert set(statuses) == {Status.OK}, "what was written a moment ago can be read"
    return spent_s


def _bare(folder: Path, places: Sequence[SsdPlace], scratch: Sequence[memoryview], threads: ThreadPoolExecutor) -> float:
    fds = {place.segment: _open(folder, place.segment) for place in places}
    try:
        started_s = time.perf_counter()
        read = threads.map(
            lambda job: os.preadv(fds[job[0].segment], [job[1]], job[0].offset), zip(places, scratch, strict=True)
        )
        assert sum(read) == len(places) * _PAGE_BYTES
        return time.perf_counter() - started_s
    finally:
        for fd in fds.values():
            os.close(fd)


def _open(folder: Path, segment: int) -> int:
    return os.open(folder / f"{segment:012d}.lbkv", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
