"""Gathers and scatters of random pages in interleaved rounds: each is held against a flat copy right before it, since a shared
machine's memory is twice as fast in one minute as in the next."""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections.abc import Callable, Sequence
from statistics import median
from types import ModuleType
from typing import Any

from bench.hip.noise import fill
from bench.hip.outcome import MemoryOutcome, medians
from bench.hip.rivals import Buffers, Step, Way, ways_of

_BATCH_PAGES = 8
_BATCH_PAGE_BYTES = 64 << 10
_BATCH_REPEATS = 400

Samples = dict[str, dict[int, list[float]]]


class WrongBytes(Exception):
    """A way of copying did not copy: nothing that was measured counts."""


def measure_memory(
    native: ModuleType, page_sizes: Sequence[int], size: int, rounds: int, threads: int, tell: Callable[[str], None]
) -> MemoryOutcome:
    """`size` bytes a buffer, a multiple of every page. Raises WrongBytes."""
    buffers = Buffers(native.HostBuffer.create(size), native.HostBuffer.create(size))
    fill(memoryview(buffers.pool), 1)
    copier = native.PageCopier(threads)
    ways = ways_of(native, threads)
    _check(ways, buffers, page_sizes)
    gathers: Samples = {way.name: {page: [] for page in page_sizes} for way in ways}
    scatters: Samples = {way.name: {page: [] for page in page_sizes} for way in ways}
    flat_s: list[float] = []
    striped: list[float] = []
    for number in range(rounds):
        for page_bytes in page_sizes:
            pages = _shuffled(size // page_bytes, number)
            for way in ways:
                copier.flat(buffers.packed, buffers.pool)  # while threads of the way before still spin
                flat_s.append(_timed(lambda: copier.flat(buffers.packed, buffers.pool)))
                gathers[way.name][page_bytes].append(flat_s[-1] / _timed(way.gather(buffers, pages, page_bytes)))
                scatters[way.name][page_bytes].append(flat_s[-1] / _timed(way.scatter(buffers, pages, page_bytes)))
        copier.flat(buffers.packed, buffers.pool)
        flat_s.append(_timed(lambda: copier.flat(buffers.packed, buffers.pool)))
        striped.append(flat_s[-1] / _timed(_striped(copier, buffers)))
        tell(f"round {number + 1} of {rounds}: a flat copy runs at {size / flat_s[-1] / 1e9:.1f} GB/s")
    overhead_us = _batch_overhead_us(copier, buffers)
    rate = size / median(flat_s) / 1e9
    return MemoryOutcome(medians(gathers), medians(scatters), overhead_us, rate, median(striped), threads, copier.isa)


def _striped(copier: Any, buffers: Buffers) -> Step:
    columns = [array("q", [value]) for value in (buffers.packed.address, buffers.pool.address, buffers.pool.bytes)]
    return lambda: copier.move(*columns)


def _shuffled(count: int, seed: int) -> list[int]:
    pages = list(range(count))
    random.Random(seed).shuffle(pages)
    return pages


def _timed(step: Step) -> float:
    gc.disable()
    start = time.perf_counter()
    step()
    took_s = time.perf_counter() - start
    gc.enable()
    return took_s


def _check(ways: Sequence[Way], buffers: Buffers, page_sizes: Sequence[int]) -> None:
    """Also touches everything once before it is timed."""
    pool, packed = memoryview(buffers.pool), memoryview(buffers.packed)
    for page_bytes in page_sizes:
        pages = _shuffled(len(pool) // page_bytes, 0)
        for way in ways:
            packed[: 2 * page_bytes] = bytes(2 * page_bytes)
            way.gather(buffers, pages, page_bytes)()
            for slot in (0, 1, len(pages) - 1):
                want = pool[pages[slot] * page_bytes :][:page_bytes]
                if packed[slot * page_bytes :][:page_bytes] != want:
                    raise WrongBytes(f"{way.name} gathered wrong bytes into page {slot} of {page_bytes} bytes")
            way.scatter(buffers, pages, page_bytes)()


def _batch_overhead_us(copier: Any, buffers: Buffers) -> float:
    """A small batch against a flat copy of as many bytes at the rate of a large one, from pages that are in no cache."""
    size = len(memoryview(buffers.pool))
    rng = random.Random(2)
    held = size // _BATCH_PAGE_BYTES
    packed = memoryview(buffers.packed)[: _BATCH_PAGES * _BATCH_PAGE_BYTES]
    batch_s, flat_s = [], []
    for number in range(_BATCH_REPEATS):
        pages = array("q", [rng.randrange(held) for _ in range(_BATCH_PAGES)])
        batch_s.append(_timed(lambda: copier.gather(packed, buffers.pool, pages, _BATCH_PAGE_BYTES)))  # noqa: B023
        if not number % (_BATCH_REPEATS // 8):
            flat_s.append(_timed(lambda: copier.flat(buffers.packed, buffers.pool)))
    return (median(batch_s) - median(flat_s) * len(packed) / size) * 1e6
