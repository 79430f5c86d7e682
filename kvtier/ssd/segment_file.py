"""One segment file: appended to by one thread, read by many, deleted once nobody reads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import EINVAL
from pathlib import Path
from threading import Lock

from kvtier.ssd.layout import BLOCK_BYTES, file_header

SUFFIX = ".lbkv"


class SegmentFile:
    """`direct` says whether reads and writes go past the page cache. Offsets, lengths and buffers are whole blocks."""

    def __init__(self, path: Path, segment: int, fd: int, *, direct: bool, end: int) -> None:
        self.path = path
        self.segment = segment
        self.direct = direct
        self.end = end  # what is written
        self._fd = fd
        self._lock = Lock()
        self._reads = 0
        self._closing = False

    @classmethod
    def create(cls, directory: Path, segment: int, size: int, header: memoryview) -> SegmentFile:
        """A new file with all its space reserved, so that a full device is found out here. `header` is a block of scratch.

        Raises OSError; then nothing is left behind.
        """
        path = segment_path(directory, segment)
        fd, direct = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, size)
            header[:] = file_header(segment)
            write_all(fd, [header], 0)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return cls(path, segment, fd, direct=direct, end=BLOCK_BYTES)

    @classmethod
    def reopen(cls, path: Path, segment: int, end: int) -> SegmentFile:
        """A file that an earlier life wrote; what it reserved beyond `end` is given back."""
        fd, direct = _open(path, os.O_RDWR)
        os.ftruncate(fd, end)
        return cls(path, segment, fd, direct=direct, end=end)

    def append(self, pieces: Sequence[memoryview]) -> None:
        """Write at the end. Raises OSError; then the end is where it was."""
        write_all(self._fd, pieces, self.end)
        self.end += sum(map(len, pieces))

    def enter(self) -> int | None:
        """The descriptor to read from, open until `leave`; None for a file that is being deleted."""
        with self._lock:
            if self._closing:
                return None
            self._reads += 1
            return self._fd

    def leave(self) -> None:
        with self._lock:
            self._reads -= 1
            last = self._closing and not self._reads
        if last:
            os.close(self._fd)

    def seal(self) -> None:
        """Nothing more will be appended: give unused space back and bring the rest to the device."""
        os.ftruncate(self._fd, self.end)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """As soon as nobody reads it any more."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            idle = not self._reads
        if idle:
            os.close(self._fd)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:012d}{SUFFIX}"


def write_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Raises OSError."""
    left = list(pieces)
    while left:
        written = os.pwritev(fd, left, offset)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left and written:
            left[0] = left[0][written:]


def _open(path: Path, flags: int) -> tuple[int, bool]:
    try:
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600), True
    except OSError as error:
        if error.errno != EINVAL:  # the file system knows no direct I/O
            raise
    return os.open(path, flags & ~os.O_EXCL | os.O_CLOEXEC, 0o600), False
