"""Copies pages between an engine's buffers and shared memory, with their checksums, on a few threads.

A page is one run of bytes in shared memory and several pieces in the engine (keys and values). Copies and checksums let go of
the interpreter's lock, so that threads help from some 16 KiB on. This is the portable way; a native one has the same methods.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from kvtier.client.engine_pages import EnginePages
from kvtier.client.memory import SharedMemory
from kvtier.page.checksum import page_checksum, parts_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIN_BYTES_A_THREAD = 256 << 10


class Copier(Protocol):
    """For several threads at once. `offsets` says where each page lies in shared memory; ValueError for one that does not.

    Answers are CHECKSUM_BYTES a page, joined.
    """

    def put(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        """Copy into shared memory; checksums of what was to be copied."""
        ...

    def get(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        """Copy into the engine; checksums of what lies there then."""
        ...

    def close(self) -> None: ...


class PortableCopier:
    """`threads` beside each other, also for several callers at once."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "loadback-copy") if threads > 1 else None

    def put(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        return self._spread(_put, memory, offsets, pages)

    def get(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        return self._spread(_get, memory, offsets, pages)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _spread(self, copy: _Copy, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        parts = spread(len(offsets), pages.page_bytes, self._threads)
        if self._pool is None or len(parts) < 2:
            return copy(memory, offsets, pages)
        others = [self._pool.submit(copy, memory, offsets[part], pages.part(part)) for part in parts[1:]]
        first = copy(memory, offsets[parts[0]], pages.part(parts[0]))
        return first + b"".join(other.result() for other in others)


def spread(count: int, page_bytes: int, threads: int) -> list[slice]:
    """Neighbouring pages for each of up to `threads`, no more than are worth it."""
    shares = max(1, min(threads, count, count * page_bytes // _MIN_BYTES_A_THREAD))
    size = max(1, -(-count // shares))
    return [slice(start, start + size) for start in range(0, count, size)]


class _Copy(Protocol):
    def __call__(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes: ...


def _put(memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
    checksums = []
    for number, offset in enumerate(offsets):
        view = memory.view(offset, pages.page_bytes)  # refuses what does not lie in there
        target = memory.address + offset
        for address, length in pages.pieces(number):
            ctypes.memmove(target, address, length)
            target += length
        checksums.append(page_checksum(view))
    return b"".join(checksums)


def _get(memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
    checksums = []
    for number, offset in enumerate(offsets):
        memory.view(offset, pages.page_bytes)  # refuses what does not lie in there
        source = memory.address + offset
        pieces = pages.pieces(number)
        for address, length in pieces:
            ctypes.memmove(address, source, length)
            source += length
        checksums.append(parts_checksum(_bytes_at(*piece) for piece in pieces))
    return b"".join(checksums)


def _bytes_at(address: int, length: int) -> Buffer:
    """The piece itself, not a copy."""
    return (ctypes.c_char * length).from_address(address)
