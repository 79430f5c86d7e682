"""Copies pages between an engine's buffers and shared memory, with their checksums, on a few threads.

A page is one run of bytes in shared memory and several pieces in the engine (keys and values). Copies and checksums let go of
the interpreter's lock, so that threads help from some 16 KiB on. This is the portable way; a native one has the same methods.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvtier.client.memory import SharedMemory
from kvtier.page.checksum import page_checksum, parts_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIN_BYTES_A_THREAD = 256 << 10


class Piece(NamedTuple):
    """Bytes in the engine's own memory."""

    address: int
    length: int


class StoredPage(NamedTuple):
    """One page: where it lies in shared memory and in the engine."""

    offset: int
    pieces: Sequence[Piece]

    @property
    def length(self) -> int:
        return sum(piece.length for piece in self.pieces)


class Copier(Protocol):
    """For several threads at once. Both raise ValueError for what does not lie in shared memory."""

    def put(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        """Copy into shared memory; checksums of what was to be copied."""
        ...

    def get(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        """Copy into the engine; checksums of what lies there then."""
        ...

    def close(self) -> None: ...


class PortableCopier:
    """`threads` beside each other, also for several callers at once."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "loadback-copy") if threads > 1 else None

    def put(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        return self._spread(_put, memory, pages)

    def get(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        return self._spread(_get, memory, pages)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _spread(self, copy: _Copy, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        parts = spread(pages, self._threads)
        if self._pool is None or len(parts) < 2:
            return copy(memory, pages)
        others = [self._pool.submit(copy, memory, part) for part in parts[1:]]
        return copy(memory, parts[0]) + [checksum for other in others for checksum in other.result()]


def spread(pages: Sequence[StoredPage], threads: int) -> list[Sequence[StoredPage]]:
    """Neighbouring pages for each of up to `threads`, no more than are worth it."""
    shares = max(1, min(threads, len(pages), sum(page.length for page in pages) // _MIN_BYTES_A_THREAD))
    size = -(-len(pages) // shares)
    return [pages[start : start + size] for start in range(0, len(pages), size)] if pages else []


def grouped(pages: Sequence[StoredPage], max_bytes: int) -> Iterator[Sequence[StoredPage]]:
    """Neighbouring pages of up to `max_bytes` together, at least one."""
    start = size = 0
    for end, page in enumerate(pages):
        if end > start and size + page.length > max_bytes:
            yield pages[start:end]
            start, size = end, 0
        size += page.length
    if start < len(pages):
        yield pages[start:]


class _Copy(Protocol):
    def __call__(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]: ...


def _put(memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
    checksums = []
    for page in pages:
        view = memory.view(page.offset, page.length)  # refuses what does not lie in there
        target = memory.address + page.offset
        for piece in page.pieces:
            ctypes.memmove(target, piece.address, piece.length)
            target += piece.length
        checksums.append(page_checksum(view))
    return checksums


def _get(memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
    checksums = []
    for page in pages:
        memory.view(page.offset, page.length)  # refuses what does not lie in there
        source = memory.address + page.offset
        for piece in page.pieces:
            ctypes.memmove(piece.address, source, piece.length)
            source += piece.length
        checksums.append(parts_checksum(map(bytes_at, page.pieces)))
    return checksums


def bytes_at(piece: Piece) -> Buffer:
    """The piece itself, not a copy."""
    return (ctypes.c_char * piece.length).from_address(piece.address)
