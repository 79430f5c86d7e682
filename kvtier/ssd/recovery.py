"""What an earlier life left in a directory of segments.

Group headers are read, pages are not: each is checked when it is read, as always. Only the last group of a file that was never
sealed may have been cut off by a kill, so that its pages are checked now and the broken ones dropped. A damaged group header
costs its own pages: the search goes on at the next whole header behind it, which names its segment and its place. A file
that cannot be read is left alone and reported; so is one without a header of ours, unless groups of ours are in it, or it is
empty or blank: then it was being created. Pages of spaces that were cleared since they were written are not taken in; where the
note of that is lost, no page is.
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
from kvtier.ssd.clears import BrokenClears, forget_clears, read_clears
from kvtier.ssd.layout import BLOCK_BYTES, GROUP_MAGIC, Broken, Group, PageRecord, read_file_header, read_group, read_group_size
from kvtier.ssd.segment_file import SUFFIX, SegmentFile, segment_path
from kvtier.store.page import SsdPlace

log = logging.getLogger(__name__)

_THREADS = 8
_SEARCH_BYTES = 1 << 20
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
    lost_bytes: int = 0  # behind group headers that are damaged
    rejected: list[Path] = []  # not ours, or not to be read: they stay, and take space
    newest: int = 0  # highest segment number seen
    clears: dict[bytes, SsdPlace] = {}


def recover(directory: Path) -> Recovered:
    """Raises OSError where the directory cannot be read."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    found = Recovered()
    try:
        found.clears = read_clears(directory)
    except BrokenClears as error:
        log.warning("%s: nothing on this SSD is taken in", error)
        return _nothing(directory, paths)
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
            if lost := _lost_bytes(groups):
                found.lost_bytes += lost
                log.warning("%s: %d bytes of pages behind damaged headers are lost", path, lost)
            _take(found, directory, path, segment, groups)
    return found


def _nothing(directory: Path, paths: list[Path]) -> Recovered:
    """Any page may have been cleared: all go, and only then the note that cannot be read."""
    found = Recovered()
    for path in paths:
        found.newest = max(found.newest, _number_of(path))
        if _scan(path) is None:
            found.rejected.append(path)
        else:
            found.lost_bytes += path.stat().st_size
            path.unlink()
    forget_clears(directory)
    return found


def _lost_bytes(groups: list[Group]) -> int:
    """Between the groups, which were written end to end."""
    ends = [BLOCK_BYTES, *(group.end for group in groups)]
    return sum(group.start - end for group, end in zip(groups, ends, strict=False))


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


def _was_cleared(found: Recovered, space: PageSpace, place: SsdPlace) -> bool:
    return bool(found.clears) and place < found.clears.get(space_digest(space), _NOWHERE)


def _scan(path: Path) -> tuple[int, list[Group], int] | None:
    """Segment number, whole groups, and pages lost at its end; None for a file that is not ours, or that the device does not
    give back: one bad place costs a segment, not the node."""
    try:
        return _scan_file(path)
    except OSError as error:
        log.warning("%s cannot be read and is left out: %s", path, error.strerror)
        return None


def _scan_file(path: Path) -> tuple[int, list[Group], int] | None:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, BLOCK_BYTES, 0)
        segment = _segment_of(head)
        groups = list(_groups(fd, segment or _number_of(path)))
        if segment is None:
            segment = _number_of(path)
            if not groups:
                return None if head.strip(b"\0") else (segment, [], 0)
            log.warning("%s: the header is damaged, its groups are whole", path)
        torn = _drop_torn(fd, groups)
    finally:
        os.close(fd)
    return segment, groups, torn


def _number_of(path: Path) -> int:
    stem = path.name.removesuffix(SUFFIX)
    return int(stem) if stem.isdecimal() else 0


def _segment_of(head: bytes) -> int | None:
    """As a file's first block has it; None where that is not ours, or damaged."""
    try:
        return read_file_header(head)
    except Broken:
        return None


def _groups(fd: int, segment: int) -> Iterator[Group]:
    size = os.fstat(fd).st_size
    group = _next_group(fd, segment, BLOCK_BYTES, size)
    while group is not None:
        yield group
        group = _next_group(fd, segment, group.end, size)


def _next_group(fd: int, segment: int, start: int, size: int) -> Group | None:
    """The first whole one from `start` on."""
    for at in _starts(fd, start, size):
        try:
            group = _group_at(fd, segment, at)
        except Broken:
            continue
        if group.end <= size:
            return group
    return None


def _group_at(fd: int, segment: int, start: int) -> Group:
    """Raises `Broken`."""
    block = os.pread(fd, BLOCK_BYTES, start)
    header_bytes = read_group_size(segment, start, block)
    return read_group(start, block if header_bytes <= BLOCK_BYTES else os.pread(fd, header_bytes, start))


def _starts(fd: int, start: int, size: int) -> Iterator[int]:
    """Where a group should begin, and where else one may."""
    yield start
    for base in range(start + BLOCK_BYTES, size, _SEARCH_BYTES):
        piece = os.pread(fd, _SEARCH_BYTES, base)
        at = piece.find(GROUP_MAGIC)
        while at >= 0:
            if at % BLOCK_BYTES == 0:
                yield base + at
            at = piece.find(GROUP_MAGIC, at + 1)


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
