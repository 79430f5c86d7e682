"""The pool's bytes by offset. Knows no pages: who may read or write which bytes is the store's business."""

from __future__ import annotations

import os

from kvtier.pool.backing import Backing, MemoryFile, create_memory


class DramPool:
    """Owns the memory file. Clients that have mapped it keep their mapping when it is closed here."""

    def __init__(self, memory: MemoryFile) -> None:
        self._memory = memory
        self._view = memoryview(memory.map)

    @classmethod
    def create(cls, size: int, backing: Backing = Backing.AUTO, *, prefault: bool = True) -> DramPool:
        """Raises `BackingError`."""
        return cls(create_memory(size, backing, prefault=prefault))

    @property
    def fd(self) -> int:
        return self._memory.fd

    @property
    def bytes(self) -> int:
        return len(self._view)

    @property
    def backing(self) -> Backing:
        """What was got."""
        return self._memory.backing

    @property
    def huge_bytes(self) -> int:
        return self._memory.huge_bytes

    def view(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def close(self) -> None:
        """Views handed out must be gone."""
        self._view.release()
        self._memory.map.close()
        os.close(self._memory.fd)
