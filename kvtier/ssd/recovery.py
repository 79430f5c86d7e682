"""What an earlier life left in a directory of segments.

Group headers are read, pages are not: each is checked when it is read, as always. Only the last group of a file that was never
sealed may have been cut off by a kill, so that its pages are checked now and the broken ones dropped. A file without a header
of ours is left alone and reported, unless it is empty or blank: then it was being created. Pages of spaces that were cleared
since they were written are not taken in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from kvtier.page.checksum import page_checksum
from kvtier.page.space import PageSpace, space_digest
from kvtier.ssd.clears import BrokenClears, read_clears
from kvtier.ssd.layout import BLOCK_BYTES, Broken, Group, PageRecord, read_file_header, read_group, read_group_size
from kvtier.ssd.segment_file import SUFFIX, SegmentFile, segment_path
from kvtier.store.page import SsdPlace

log = logging.getLogger(__name__)

_THREADS = 8
_NOWHERE = SsdPlace(0, 0)  # before everything


class RecoveredPage(msgspec.Struct, frozen=True):
    space: PageSpace
    segment: int
    record: PageRecord


class Recovered(msgspec.Struct):
    """In the order in which it was written."""

    pages: list[RecoveredPage] = []
    files: list[SegmentFile] = []
    torn_pages: int = 0  # of groups that were cut off
    rejected: list[Path] = []  # not ours: they stay, and take space
    newest: int = 0  # highest segment number seen
    clears: dict[bytes, SsdPlace] = {}


def recover(directory: Path) -> Recovered:
    """Raises OSError where the directory cannot be read."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    found = Recovered(clears=_clears(directory))
    found.newest = max((place.segment for place in found.clears.values()), default=0)
    with ThreadPoolExecutor(_THREADS, "ssd-recovery") as threads:
        for path, scanned in zip(paths, threads.map(_scan, paths), strict=True):
            found.newest = max(found.newest, _number_of(path))
            if scanned is None:
                found.rejected.append(path)
                continue
            segment, groups, torn = scanned
            found.newest = max(found.newest, segment)
            found.torn_pages += torn
            _take(found, directory, path, segment, groups)
    return found


def _take(found: Recovered, directory: Path, path: Path, segment: int, groups: list[Group]) -> None:
    pages = [
        RecoveredPage(group.table.spaces[record.space], segment, record)
        for group in groups
        for record in group.table.pages
        if not _was_cleared(found, group.table.spaces[record.space], SsdPlace(segment, record.offset))
    ]
    if path != segment_path(directory, segment):
        found.rejected.append(path)
    elif pages:
        found.pages.extend(pages)
        found.files.append(SegmentFile.reopen(path, segment, groups[-1].end))
    else:
        path.unlink()


def _clears(directory: Path) -> dict[bytes, SsdPlace]:
    try:
        return read_clears(directory)
    except BrokenClears as error:
        log.warning("%s", error)
        return {}


def _was_cleared(found: Recovered, space: PageSpace, place: SsdPlace) -> bool:
    return bool(found.clears) and place < found.clears.get(space_digest(space), _NOWHERE)


def _scan(path: Path) -> tuple[int, list[Group], int] | None:
    """Segment number, whole groups, and pages lost at its end; None for a file that is not ours."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, BLOCK_BYTES, 0)
        if not head.strip(b"\0"):
            return _number_of(path), [], 0
        try:
            segment = read_file_header(head)
        except Broken:
            return None
        groups = list(_groups(fd, segment))
        torn = _drop_torn(fd, groups)
    finally:
        os.close(fd)
    return segment, groups, torn


def _number_of(path: Path) -> int:
    stem = path.name.removesuffix(SUFFIX)
    return int(stem) if stem.isdecimal() else 0


def _groups(fd: int, segment: int) -> Iterator[Group]:
    start = BLOCK_BYTES
    size = os.fstat(fd).st_size
    while True:
        try:
            block = os.pread(fd, BLOCK_BYTES, start)
            header_bytes = read_group_size(segment, start, block)
            group = read_group(start, block if header_bytes <= BLOCK_BYTES else os.pread(fd, header_bytes, start))
        except Broken:
            return
        if group.end > size:
            return
        yield group
        start = group.end


def _drop_torn(fd: int, groups: list[Group]) -> int:
    """Check the pages of the last group, unless the file was sealed behind it; how many were dropped."""
    if not groups or groups[-1].end == os.fstat(fd).st_size:
        return 0
    last = groups.pop()
    whole = tuple(record for record in last.table.pages if _is_whole(fd, record))
    if whole:
        groups.append(msgspec.structs.replace(last, table=msgspec.structs.replace(last.table, pages=whole)))
    return len(last.table.pages) - len(whole)


def _is_whole(fd: int, record: PageRecord) -> bool:
    return page_checksum(os.pread(fd, record.length, record.offset)) == record.checksum
