"""Pages for the SSD's tests: made from a number, so that any process can make and check them."""

from __future__ import annotations

import mmap
from hashlib import sha256
from random import Random

from kvtier.page.checksum import page_checksum
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.ssd.layout import PageToWrite, padded
from kvtier.ssd.segments import PageToRead, SsdSegments
from kvtier.store.page import SsdPlace

SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
OTHER_SPACE = PageSpace(model="n", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
KIB = 1024


def content(number: int, length: int) -> bytes:
    return Random(number).randbytes(length)


def digest(number: int) -> bytes:
    return sha256(number.to_bytes(8, "little")).digest()


def page(number: int, length: int = 4096, space: PageSpace = SPACE) -> PageToWrite:
    buffer = mmap.mmap(-1, padded(length))
    buffer[:length] = content(number, length)
    checksum = page_checksum(memoryview(buffer)[:length])
    return PageToWrite(space, digest(number), length, checksum, PageKind.USER_QUERY, number, memoryview(buffer))


def read(segments: SsdSegments, place: SsdPlace, length: int) -> bytes | None:
    """The page's bytes, unchecked; None where they are not there."""
    buffer = memoryview(mmap.mmap(-1, padded(length)))
    return bytes(buffer[:length]) if segments.read([PageToRead(place, buffer)]) == [0] else None
