"""Copies between an engine's buffers and shared memory by loadback-hip: past the caches, a few megabytes a call.

Each thread copies a group of pages and then hashes it: with larger groups two threads seldom wait for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvtier.client.copier import Copier, Piece, PortableCopier, StoredPage, bytes_at, grouped, spread
from kvtier.client.memory import SharedMemory
from kvtier.copy.base import Move, PageCopies
from kvtier.copy.native import NativeCopies, native_module
from kvtier.page.checksum import page_checksum, parts_checksum

_GROUP_BYTES = 4 << 20


def best_copier(threads: int = 2) -> Copier:
    """Native where loadback-hip is installed, else portable."""
    module = native_module()
    if module is None:
        return PortableCopier(threads)
    return NativeCopier([NativeCopies(module.PageCopier(1)) for _ in range(threads)])


class NativeCopier:
    """One `PageCopies` a thread."""

    def __init__(self, copies: Sequence[PageCopies]) -> None:
        self._copies = copies
        self._pool = ThreadPoolExecutor(len(copies), "loadback-copy")

    def put(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        return self._spread(_put, memory, pages)

    def get(self, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
        return self._spread(_get, memory, pages)

    def close(self) -> None:
        self._pool.shutdown()

    def _spread(
        self, copy: Callable[[PageCopies, SharedMemory, Sequence[StoredPage]], list[bytes]], memory: SharedMemory,
        pages: Sequence[StoredPage],
    ) -> list[bytes]:  # fmt: skip
        parts = spread(pages, len(self._copies))
        others = [
            self._pool.submit(copy, copies, memory, part) for copies, part in zip(self._copies[1:], parts[1:], strict=False)
        ]
        first = copy(self._copies[0], memory, parts[0]) if parts else []
        return first + [checksum for other in others for checksum in other.result()]


def _put(copies: PageCopies, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
    checksums = []
    for group in grouped(pages, _GROUP_BYTES):
        copies.move([Move(to, piece.address, piece.length) for page in group for piece, to in _placed(memory, page)])
        checksums += [page_checksum(memory.view(page.offset, page.length)) for page in group]
    return checksums


def _get(copies: PageCopies, memory: SharedMemory, pages: Sequence[StoredPage]) -> list[bytes]:
    checksums = []
    for group in grouped(pages, _GROUP_BYTES):
        copies.move([Move(piece.address, from_, piece.length) for page in group for piece, from_ in _placed(memory, page)])
        checksums += [parts_checksum(map(bytes_at, page.pieces)) for page in group]
    return checksums


def _placed(memory: SharedMemory, page: StoredPage) -> list[tuple[Piece, int]]:
    """Each piece with its address in shared memory. Raises ValueError for what does not lie in there."""
    memory.view(page.offset, page.length)
    address = memory.address + page.offset
    placed = []
    for piece in page.pieces:
        placed.append((piece, address))
        address += piece.length
    return placed
