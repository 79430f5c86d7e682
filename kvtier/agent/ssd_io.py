"""Blocking SSD work for the agent's I/O threads, with a checksum on every way: pages to places, places to pages.

An error of the device is an answer about pages, never an exception: a write that fails leaves its pages in DRAM alone, a read
that fails means that the page is not there any more.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from errno import ENOENT

import msgspec

from kvtier.page.checksum import page_checksum
from kvtier.page.key import digest_of
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.ssd.layout import PageToWrite, padded
from kvtier.ssd.segments import PageToRead, SsdFull, SsdSegments
from kvtier.store.actions import Keep
from kvtier.store.page import SsdPlace

log = logging.getLogger(__name__)

_MOVE_BYTES = 4 << 20


class Written(msgspec.Struct, frozen=True):
    """OK with a place; BUSY: the device is full; CORRUPT: not what the checksum says; MISS: the device failed."""

    status: Status
    place: SsdPlace | None = None


class Wanted(msgspec.Struct, frozen=True):
    """A page to read into `target`, whole blocks."""

    place: SsdPlace
    length: int
    checksum: bytes
    target: memoryview


def write_pages(segments: SsdSegments, pages: Sequence[PageToWrite]) -> list[Written]:
    """Write together those that are what their checksums say."""
    whole = [page_checksum(page.data[: page.length]) == page.checksum for page in pages]
    good = [page for page, is_whole in zip(pages, whole, strict=True) if is_whole]
    written = iter(_append(segments, good))
    return [next(written) if is_whole else Written(Status.CORRUPT) for is_whole in whole]


def read_pages(segments: SsdSegments, pages: Sequence[Wanted]) -> list[Status]:
    """OK where `target` holds the page now, CORRUPT where it cannot be had any more."""
    errors = segments.read([PageToRead(page.place, page.target) for page in pages])
    return [_judged(segments, page, error) for page, error in zip(pages, errors, strict=True)]


def move_pages(segments: SsdSegments, keeps: Sequence[Keep], space_of: Callable[[Keep], PageSpace]) -> list[Written]:
    """Write pages of an old segment anew."""
    moved: list[Written] = []
    rest = list(keeps)
    while rest:
        batch = [rest.pop(0)]
        size = padded(batch[0].length)
        while rest and size + padded(rest[0].length) <= _MOVE_BYTES:
            batch.append(rest.pop(0))
            size += padded(batch[-1].length)
        moved.extend(_move(segments, batch, size, space_of))
    return moved


def note_clears(segments: SsdSegments, spaces: Sequence[bytes]) -> bool:
    """Whether it was done."""
    try:
        segments.clear(spaces)
    except OSError as error:
        log.warning("noting in %s what was cleared failed: %s", segments.directory, error)
        return False
    return True


def _move(segments: SsdSegments, keeps: Sequence[Keep], size: int, space_of: Callable[[Keep], PageSpace]) -> list[Written]:
    scratch = memoryview(mmap.mmap(-1, size))
    pages, reads = [], []
    for keep in keeps:
        target, scratch = scratch[: padded(keep.length)], scratch[padded(keep.length) :]
        reads.append(PageToRead(keep.place, target))
        digest = digest_of(keep.key)
        pages.append(PageToWrite(space_of(keep), digest, keep.length, keep.checksum, keep.kind, keep.depth, target))
    segments.read(reads)  # what fails is not what its checksum says when it is written
    return write_pages(segments, pages)


def _append(segments: SsdSegments, pages: Sequence[PageToWrite]) -> list[Written]:
    if not pages:
        return []
    try:
        return [Written(Status.OK, place) for place in segments.append(pages)]
    except SsdFull as error:
        log.warning("SSD is full: %s", error)
        return [Written(Status.BUSY)] * len(pages)
    except OSError as error:
        log.warning("writing %d pages to %s failed: %s", len(pages), segments.directory, error)
        return [Written(Status.MISS)] * len(pages)


def _judged(segments: SsdSegments, page: Wanted, error: int) -> Status:
    if error:
        if error != ENOENT:
            log.error("reading %s of %s failed: %s", page.place, segments.directory, os.strerror(error))
        return Status.CORRUPT
    return Status.OK if page_checksum(page.target[: page.length]) == page.checksum else Status.CORRUPT
