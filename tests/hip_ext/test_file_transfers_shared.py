"""One suite for every way of reading and writing files in bulk, page cache and O_DIRECT alike."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Iterator
from errno import EBADF, EFBIG
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from signal import SIG_IGN, SIGXFSZ, signal

import pytest

from kvtier.copy.files import FilePart, FileTransfers, PartOutcome

BLOCK = 4096
FILE_BLOCKS = 600


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(3).randbytes(FILE_BLOCKS * BLOCK)


@pytest.fixture(params=["cached", "direct"])
def fd(request: pytest.FixtureRequest, tmp_path: Path, content: bytes) -> Iterator[int]:
    path = tmp_path / "segment"
    path.write_bytes(content)
    opened = os.open(path, os.O_RDWR | (os.O_DIRECT if request.param == "direct" else 0))
    yield opened
    os.close(opened)


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, FILE_BLOCKS * BLOCK)  # aligned to a block


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("blocks", [1, 7, 100])
def test_parts_in_any_order(transfers: FileTransfers, fd: int, memory: mmap.mmap, content: bytes, blocks: int) -> None:
    length = blocks * BLOCK
    numbers = list(range(len(content) // length))
    random.Random(blocks).shuffle(numbers)
    at = address_of(memory)
    outcomes = transfers.read(
        [FilePart(fd, number * length, at + slot * length, length) for slot, number in enumerate(numbers)]
    )
    assert outcomes == [PartOutcome(length, 0)] * len(numbers)
    assert memory[: len(numbers) * length] == b"".join(content[number * length :][:length] for number in numbers)


def test_neighbours(transfers: FileTransfers, fd: int, memory: mmap.mmap, content: bytes) -> None:
    at = address_of(memory)
    parts = [FilePart(fd, block * BLOCK, at + block * BLOCK, BLOCK) for block in range(FILE_BLOCKS)]
    assert transfers.read(parts) == [PartOutcome(BLOCK, 0)] * FILE_BLOCKS
    assert memory[:] == content


def test_the_files_end(transfers: FileTransfers, fd: int, memory: mmap.mmap, content: bytes) -> None:
    os.truncate(fd, 2 * BLOCK + 100)
    at = address_of(memory)
    parts = [FilePart(fd, block * BLOCK, at + block * BLOCK, BLOCK) for block in range(5)]
    expected = [PartOutcome(BLOCK, 0), PartOutcome(BLOCK, 0), PartOutcome(100, 0), PartOutcome(0, 0), PartOutcome(0, 0)]
    assert transfers.read(parts) == expected
    assert memory[: 2 * BLOCK + 100] == content[: 2 * BLOCK + 100]


def test_one_failure_leaves_the_others(transfers: FileTransfers, fd: int, memory: mmap.mmap, content: bytes) -> None:
    at, closed = address_of(memory), os.dup(fd)
    os.close(closed)
    parts = [FilePart(closed if slot == 3 else fd, slot * BLOCK, at + slot * BLOCK, BLOCK) for slot in range(20)]
    outcomes = transfers.read(parts)
    assert outcomes == [PartOutcome(0, EBADF) if slot == 3 else PartOutcome(BLOCK, 0) for slot in range(20)]
    assert memory[4 * BLOCK : 20 * BLOCK] == content[4 * BLOCK : 20 * BLOCK]


def test_write_and_read_back(transfers: FileTransfers, fd: int, memory: mmap.mmap) -> None:
    data = random.Random(5).randbytes(40 * BLOCK)
    memory[: len(data)] = data
    at = address_of(memory)
    parts = [FilePart(fd, (39 - slot) * BLOCK, at + slot * BLOCK, BLOCK) for slot in range(40)]
    assert transfers.write(parts) == [PartOutcome(BLOCK, 0)] * 40
    memory[:] = bytes(len(memory))
    assert transfers.read(parts) == [PartOutcome(BLOCK, 0)] * 40
    assert memory[: len(data)] == data


def test_a_write_past_what_is_allowed(transfers: FileTransfers, fd: int, memory: mmap.mmap) -> None:
    before, limits = signal(SIGXFSZ, SIG_IGN), getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (FILE_BLOCKS * BLOCK, limits[1]))
    try:
        outcomes = transfers.write([FilePart(fd, (FILE_BLOCKS + n) * BLOCK, address_of(memory), BLOCK) for n in (-1, 0)])
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
        signal(SIGXFSZ, before)
    assert outcomes == [PartOutcome(BLOCK, 0), PartOutcome(0, EFBIG)]


def test_nothing_and_nonsense(transfers: FileTransfers, fd: int, memory: mmap.mmap) -> None:
    at = address_of(memory)
    assert transfers.read([]) == []
    assert transfers.read([FilePart(fd, 0, at, 0)]) == [PartOutcome(0, 0)]
    for part in (FilePart(fd, -BLOCK, at, BLOCK), FilePart(fd, 0, at, -BLOCK)):
        with pytest.raises(ValueError, match="below 0"):
            transfers.read([part])
