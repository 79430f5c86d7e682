"""Memory as an engine has it: big buffers with the keys of all pages in front and the values behind."""

from __future__ import annotations

import ctypes
import mmap

from kvtier.client.engine_pages import EnginePages

_HUGE = 14  # MADV_HUGEPAGE


class Buffer:
    """Prefaulted, on huge pages where the system gives them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        self._map.madvise(_HUGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        ctypes.memset(self.address, 7, size)

    @property
    def view(self) -> memoryview:
        return memoryview(self._map)

    def pages(self, page_bytes: int) -> EnginePages:
        """As many as fit, two pieces each."""
        half, count = page_bytes // 2, self.size // page_bytes
        return EnginePages.striped([(self.address, half), (self.address + count * half, half)], count)

    def mark(self, page_bytes: int, seed: int) -> None:
        """Make every page another one."""
        for page in range(self.size // page_bytes):
            ctypes.memmove(self.address + page * (page_bytes // 2), (seed * 1_000_003 + page).to_bytes(16, "little"), 16)
