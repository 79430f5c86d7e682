"""Ways of gathering and scattering pages: ours, libc's memcpy on the same threads, numpy and torch where they are installed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

Step = Callable[[], object]


class Buffers(NamedTuple):
    """Two equally long pieces of memory: a pool of pages, and where they are packed."""

    pool: Any
    packed: Any


class Way(NamedTuple):
    """Makes the step to be timed, for the pages of one round."""

    name: str
    gather: Callable[[Buffers, Sequence[int], int], Step]
    scatter: Callable[[Buffers, Sequence[int], int], Step]


def ways_of(native: ModuleType, threads: int) -> list[Way]:
    ways = [_native("ours", native.PageCopier(threads)), _native("libc", native.PageCopier(threads, "portable"))]
    numpy, torch = _installed("numpy"), _installed("torch")
    if numpy:
        ways.append(_numpy(numpy))
    if torch and numpy:
        torch.set_num_threads(threads)
        ways.append(_torch(torch, numpy))
    return ways


def _installed(name: str) -> Any | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _native(name: str, copier: Any) -> Way:
    def gather(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        numbers = array("q", pages)
        return lambda: copier.gather(buffers.packed, buffers.pool, numbers, page_bytes)

    def scatter(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        numbers = array("q", pages)
        return lambda: copier.scatter(buffers.pool, buffers.packed, numbers, page_bytes)

    return Way(name, gather, scatter)


def _numpy(numpy: Any) -> Way:
    def rows(buffer: Any, page_bytes: int) -> Any:
        return numpy.frombuffer(memoryview(buffer), "uint8").reshape(-1, page_bytes)

    def gather(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        pool, packed, numbers = rows(buffers.pool, page_bytes), rows(buffers.packed, page_bytes), numpy.array(pages)
        return lambda: numpy.take(pool, numbers, axis=0, out=packed, mode="clip")  # raise would go through a buffer

    def scatter(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        pool, packed, numbers = rows(buffers.pool, page_bytes), rows(buffers.packed, page_bytes), numpy.array(pages)
        return lambda: pool.__setitem__(numbers, packed)

    return Way("numpy", gather, scatter)


def _torch(torch: Any, numpy: Any) -> Way:
    def rows(buffer: Any, page_bytes: int) -> Any:
        return torch.from_numpy(numpy.frombuffer(memoryview(buffer), "int64").reshape(-1, page_bytes // 8))

    def gather(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        pool, packed, numbers = rows(buffers.pool, page_bytes), rows(buffers.packed, page_bytes), torch.tensor(pages)
        return lambda: torch.index_select(pool, 0, numbers, out=packed)

    def scatter(buffers: Buffers, pages: Sequence[int], page_bytes: int) -> Step:
        pool, packed, numbers = rows(buffers.pool, page_bytes), rows(buffers.packed, page_bytes), torch.tensor(pages)
        return lambda: pool.index_copy_(0, numbers, packed)

    return Way("torch", gather, scatter)
