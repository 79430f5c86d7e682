"""Random reads of a file past the page cache: pages of 1 MiB by io_uring, against the best that the device gave in the same
round, and against 32 threads in CPU time."""

from __future__ import annotations

import ctypes
import os
import random
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

from bench.hip.noise import fill
from bench.hip.outcome import DiskOutcome

PAGE_BYTES = 1 << 20
_LARGE_BYTES = 4 << 20
_DEPTH = 32
_THREADS = 32


class NoDirectReads(Exception):
    """The folder's file system cannot read past the page cache."""


class _Timing(NamedTuple):
    bytes_a_s: float
    cpu_s_a_byte: float


def measure_disk(native: ModuleType, folder: Path, size: int, rounds: int) -> DiskOutcome:
    """`size`: of the file, a multiple of 4 MiB; it is removed again. Raises OSError and NoDirectReads."""
    memory = native.HostBuffer.create(size)
    ours = native.FileTransfers(_DEPTH)
    threads = native.FileTransfers(_THREADS, _THREADS, "threads")
    ratios, cpu_ratios, ceilings = [], [], []
    with _file_of(native, folder, memory) as fd:
        for seed in range(rounds):
            large = _read(ours, fd, memory, _LARGE_BYTES, seed)
            pages = _read(ours, fd, memory, PAGE_BYTES, seed)
            peer = _read(threads, fd, memory, PAGE_BYTES, seed)
            ceilings.append(max(large.bytes_a_s, pages.bytes_a_s, peer.bytes_a_s))
            ratios.append(pages.bytes_a_s / ceilings[-1])
            cpu_ratios.append(pages.cpu_s_a_byte / peer.cpu_s_a_byte)
    return DiskOutcome(median(ratios), median(cpu_ratios), median(ceilings) / 1e9, ours.way)


@contextmanager
def _file_of(native: ModuleType, folder: Path, memory: Any) -> Iterator[int]:
    """A file of the memory's size, full of noise, open for direct reads."""
    fill(memoryview(memory), 1)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="bench-hip-") as file:
        written = native.FileTransfers(_DEPTH).write(*_columns(file.fileno(), memory, _LARGE_BYTES, 0))
        if any(written[1]):
            raise OSError(max(written[1]), os.strerror(max(written[1])), str(folder))
        os.fsync(file.fileno())
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            raise NoDirectReads(f"{folder} takes no O_DIRECT ({error.strerror}): choose a folder on a disk") from error
        try:
            yield fd
        finally:
            os.close(fd)


def _columns(fd: int, memory: Any, page_bytes: int, seed: int) -> list[array[int]]:
    """Every page once, in random order, into memory in the same order: no two are neighbours but by chance."""
    pages = list(range(memory.bytes // page_bytes))
    random.Random(seed).shuffle(pages)
    places = [page * page_bytes for page in pages]
    addresses = [memory.address + place for place in places]
    return [array("q", column) for column in ([fd] * len(pages), places, addresses, [page_bytes] * len(pages))]


def _read(transfers: Any, fd: int, memory: Any, page_bytes: int, seed: int) -> _Timing:
    columns = _columns(fd, memory, page_bytes, seed)
    ctypes.memset(memory.address, 0, PAGE_BYTES)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    _, errors = transfers.read(*columns)
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    if any(errors):
        raise OSError(max(errors), os.strerror(max(errors)))
    return _Timing(memory.bytes / took_s, cpu_s / memory.bytes)
