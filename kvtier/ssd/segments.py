"""A directory of segment files: pages in, places out. Blocking calls for I/O threads; one writes at a time, many read.

A full device is `SsdFull`, whether the settings or the file system say so. Reading checks nothing but lengths: checksums are
the caller's, who has them. A lock on the directory keeps a second agent out.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from errno import EDQUOT, EFBIG, ENOENT, ENOSPC
from pathlib import Path
from threading import Lock, local

import msgspec

from kvtier.copy.files import FilePart, FileTransfers, PartOutcome
from kvtier.copy.native import best_transfers
from kvtier.ssd.clears import write_clears
from kvtier.ssd.layout import (
    BLOCK_BYTES,
    MAX_HEADER_BYTES,
    PageToWrite,
    fitting,
    group_header,
)
from kvtier.ssd.recovery import Recovered, recover
from kvtier.ssd.segment_file import SegmentFile
from kvtier.store.page import SsdPlace

_FULL = {ENOSPC, EDQUOT, EFBIG}


class SsdFull(Exception):
    """No room for another segment. The message says who set the limit."""


class SsdInUse(Exception):
    """Another process has this directory."""


class PageToRead(msgspec.Struct, frozen=True):
    """`target` is what to fill: whole blocks, aligned."""

    place: SsdPlace
    target: memoryview


class SsdSegments:
    """All segments of one node. `max_segments` counts files, also those found at start."""

    def __init__(self, directory: Path, segment_bytes: int, max_segments: int) -> None:
        """Take the directory and recover what it holds (see `recovered`). Raises `SsdInUse` or OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.max_segments = max_segments
        self._lock_fd = _lock(directory)
        self.recovered: Recovered = recover(directory)
        self._files = {file.segment: file for file in self.recovered.files}
        self._next_segment = self.recovered.newest + 1
        self._open: SegmentFile | None = None
        self._clears = self.recovered.clears
        self._writing = Lock()
        self._scratch = mmap.mmap(-1, MAX_HEADER_BYTES)  # aligned, for headers
        self._own = local()

    @property
    def segments(self) -> int:
        return len(self._files)

    @property
    def direct(self) -> bool | None:
        """Whether I/O goes past the page cache; None before the first file."""
        files = list(self._files.values())
        return files[-1].direct if files else None

    def append(self, pages: Sequence[PageToWrite]) -> list[SsdPlace]:
        """Write pages together, in as few groups as fit. Raises `SsdFull` or OSError; then none of them counts as written."""
        places: list[SsdPlace] = []
        with self._writing:
            rest = list(pages)
            while rest:
                file = self._open or self._new_file()
                count = self._fitting(file, rest)
                if not count:
                    self._seal()
                    continue
                places.extend(self._write_group(file, rest[:count]))
                del rest[:count]
        return places

    def read(self, pages: Sequence[PageToRead]) -> list[int]:
        """Fill every target; natively, many at once, where loadback-hip is installed. An errno for each: 0 where the target
        holds all that was asked for, ENOENT where the segment or the bytes are not there any more."""
        files = {page.place.segment: self._files.get(page.place.segment) for page in pages}
        fds = {segment: fd for segment, file in files.items() if file is not None and (fd := file.enter()) is not None}
        try:
            there = [page for page in pages if page.place.segment in fds]
            parts = [
                FilePart(fds[page.place.segment], page.place.offset, _address(page.target), len(page.target)) for page in there
            ]
            outcomes = iter(self._transfers().read(parts))
            return [_errno(next(outcomes), page) if page.place.segment in fds else ENOENT for page in pages]
        finally:
            for segment in fds:
                file = files[segment]
                assert file is not None
                file.leave()

    def clear(self, spaces: Sequence[bytes]) -> None:
        """The next life is to forget what was written of these spaces (their digests) so far. Raises OSError."""
        with self._writing:
            end = SsdPlace(self._open.segment, self._open.end) if self._open else SsdPlace(self._next_segment, 0)
            oldest = min(self._files, default=end.segment)
            clears = {space: place for space, place in self._clears.items() if place.segment >= oldest}
            clears.update(dict.fromkeys(spaces, end))
            write_clears(self.directory, clears)
            self._clears = clears

    def delete(self, segment: int) -> None:
        """Forget a segment and its file, which disappears once nobody reads it."""
        with self._writing:
            file = self._files.pop(segment, None)
            if file is not None:
                if file is self._open:
                    self._open = None
                file.delete()

    def close(self) -> None:
        """Bring everything to the device. The directory may be opened again."""
        with self._writing:
            self._seal()
            for file in self._files.values():
                file.close()
            self._files.clear()
        os.close(self._lock_fd)

    def _transfers(self) -> FileTransfers:
        """Of the calling thread: one object serves one at a time."""
        own: FileTransfers | None = getattr(self._own, "transfers", None)
        if own is None:
            own = self._own.transfers = best_transfers()
        return own

    def _new_file(self) -> SegmentFile:
        if len(self._files) >= self.max_segments:
            raise SsdFull(f"{self.directory} holds {len(self._files)} segments, as many as its bytes allow")
        header = memoryview(self._scratch)[:BLOCK_BYTES]
        try:
            file = SegmentFile.create(self.directory, self._next_segment, self.segment_bytes, header)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise SsdFull(f"no {self.segment_bytes >> 20} MiB left for {self.directory}: {error.strerror}") from error
        self._next_segment += 1
        self._files[file.segment] = self._open = file
        return file

    def _seal(self) -> None:
        if self._open is not None:
            self._open.seal()
            self._open = None

    def _fitting(self, file: SegmentFile, pages: Sequence[PageToWrite]) -> int:
        """How many of `pages` go into one group of this file; a page alone in a fresh file must fit."""
        count = fitting(pages, self.segment_bytes - file.end)
        if not count and file.end == BLOCK_BYTES:
            raise ValueError(f"a page of {pages[0].length} bytes does not fit a segment of {self.segment_bytes}")
        return count

    def _write_group(self, file: SegmentFile, pages: Sequence[PageToWrite]) -> list[SsdPlace]:
        header, table = group_header(file.segment, file.end, pages)
        scratch = memoryview(self._scratch)[: len(header)]
        scratch[:] = header
        try:
            file.append([scratch, *(page.data for page in pages)])
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._seal()
            raise SsdFull(f"no room left for {self.directory}: {error.strerror}") from error
        return [SsdPlace(file.segment, record.offset) for record in table.pages]


def _address(target: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(target))


def _errno(outcome: PartOutcome, page: PageToRead) -> int:
    return outcome.error or (0 if outcome.done == len(page.target) else ENOENT)


def _lock(directory: Path) -> int:
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise SsdInUse(f"{directory} is in use by another agent") from error
    return fd
