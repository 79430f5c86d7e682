"""What a serving process asks of its system before it starts: pages that stay."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_BYTES = 8 * 1024 * 1024  # larger blocks are mapped, and unmapped, on their own
_TRIM_BYTES = 32 * 1024 * 1024  # kept at the top of the heap at most


def keep_freed_pages() -> bool:
    """Keep the pages of large bodies instead of giving them back after each request; whether the C library takes that setting.

    glibc trims the top of its heap eagerly, and every next body faults its pages in again: a third of the CPU of a 410 KB
    request (bench/overhead, agent). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
