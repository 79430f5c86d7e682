"""The agent's memory file as a client has mapped it."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: map pages that are there already, without a fault for each
_STEP_BYTES = 64 << 20


class SharedMemory:
    """Maps a descriptor that was handed over, and closes it. Lives as long as anybody uses it, also after the agent's death.

    A thread of its own maps page after page in the background, so that the first copies are not slowed by faults: small pages
    cost some 0.1 s a GiB. `populated` is set when it is done, or where the kernel cannot.
    """

    def __init__(self, fd: int, size: int) -> None:
        try:
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.populated = threading.Event()
        threading.Thread(target=self._populate, name="loadback-map", daemon=True).start()

    @property
    def whole(self) -> memoryview:
        return memoryview(self._map)

    def view(self, offset: int, length: int) -> memoryview:
        """Raises ValueError for what lies outside."""
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"{length} bytes at {offset} do not lie in a pool of {self.size}")
        return memoryview(self._map)[offset : offset + length]

    def _populate(self) -> None:
        madvise = ctypes.CDLL(None).madvise  # of mmap objects it would keep the interpreter's lock
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start in range(0, self.size, _STEP_BYTES):
            if madvise(self.address + start, min(_STEP_BYTES, self.size - start), _POPULATE_WRITE):
                break
        self.populated.set()
