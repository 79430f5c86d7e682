"""Copies between an engine's buffers and shared memory by loadback-hip: past the caches, hashed on the way, a batch a call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kvtier.client.copier import Copier, PortableCopier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.memory import SharedMemory
from kvtier.copy.native import native_module
from kvtier.page.checksum import CHECKSUM_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIN_PAGE_BYTES = 241  # XXH3 hashes shorter ones in another way, which is not done natively


class _PageCopier(Protocol):
    """`loadback_hip.PageCopier`, as far as it is used here."""

    def put_hashed(self, pool: Buffer, offsets: Buffer, pieces: Buffer, piece_bytes: Buffer, digests: Buffer) -> None: ...
    def get_hashed(self, pool: Buffer, offsets: Buffer, pieces: Buffer, piece_bytes: Buffer, digests: Buffer) -> None: ...


def best_copier(threads: int = 2) -> Copier:
    """Native where loadback-hip is installed, else portable."""
    module = native_module()
    return PortableCopier(threads) if module is None else NativeCopier(module.PageCopier(threads))


class NativeCopier:
    """ValueError also where pages overlap each other."""

    def __init__(self, copier: _PageCopier) -> None:
        self._copier = copier
        self._of_small_pages = PortableCopier(1)

    def put(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        if pages.page_bytes < _MIN_PAGE_BYTES:
            return self._of_small_pages.put(memory, offsets, pages)
        checksums = bytearray(CHECKSUM_BYTES * len(offsets))
        self._copier.put_hashed(memory.whole, _numbers(offsets), pages.addresses, pages.piece_bytes, checksums)
        return bytes(checksums)

    def get(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        if pages.page_bytes < _MIN_PAGE_BYTES:
            return self._of_small_pages.get(memory, offsets, pages)
        checksums = bytearray(CHECKSUM_BYTES * len(offsets))
        self._copier.get_hashed(memory.whole, _numbers(offsets), pages.addresses, pages.piece_bytes, checksums)
        return bytes(checksums)

    def close(self) -> None:
        """Its threads end with it."""


def _numbers(offsets: Sequence[int]) -> array[int]:
    return offsets if isinstance(offsets, array) else array("q", offsets)
