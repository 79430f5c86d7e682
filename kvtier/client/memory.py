"""The agent's memory file as a client has mapped it."""

from __future__ import annotations

import ctypes
import mmap
import os


class SharedMemory:
    """Maps a descriptor that was handed over, and closes it. Lives as long as anybody uses it, also after the agent's death."""

    def __init__(self, fd: int, size: int) -> None:
        try:
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def view(self, offset: int, length: int) -> memoryview:
        """Raises ValueError for what lies outside."""
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"{length} bytes at {offset} do not lie in a pool of {self.size}")
        return memoryview(self._map)[offset : offset + length]
