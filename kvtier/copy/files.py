"""Many reads or writes of files at once, into and from memory by address: the interface, and the portable way, one by one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class FilePart(NamedTuple):
    """Bytes of an open file and where they belong in memory. All whole blocks for a descriptor with O_DIRECT."""

    fd: int
    offset: int
    address: int
    length: int


class PartOutcome(NamedTuple):
    """Bytes done. Fewer than asked for with `error` (an errno) 0: the file ended."""

    done: int
    error: int


class FileTransfers(Protocol):
    """Blocking, without the interpreter's lock. A failed part is an outcome, no exception; nothing is under way on return.

    One object serves one thread at a time, others wait. ValueError for an offset or length below 0.
    """

    @property
    def native(self) -> bool: ...

    def read(self, parts: Sequence[FilePart]) -> list[PartOutcome]: ...

    def write(self, parts: Sequence[FilePart]) -> list[PartOutcome]: ...


class PortableTransfers:
    native = False

    def read(self, parts: Sequence[FilePart]) -> list[PartOutcome]:
        return _transfer(os.preadv, parts)

    def write(self, parts: Sequence[FilePart]) -> list[PartOutcome]:
        return _transfer(os.pwritev, parts)


def _transfer(call: Callable[[int, list[memoryview], int], int], parts: Sequence[FilePart]) -> list[PartOutcome]:
    if any(part.offset < 0 or part.length < 0 for part in parts):
        raise ValueError("an offset or length is below 0")
    return [_whole(call, part) for part in parts]


def _whole(call: Callable[[int, list[memoryview], int], int], part: FilePart) -> PartOutcome:
    view = memoryview((ctypes.c_char * part.length).from_address(part.address)).cast("B")
    done = 0
    while done < part.length:
        try:
            got = call(part.fd, [view[done:]], part.offset + done)
        except OSError as error:
            return PartOutcome(done, error.errno or 0)
        if not got:
            break
        done += got
    return PartOutcome(done, 0)
