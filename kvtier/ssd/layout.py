"""What a segment file looks like, byte for byte.

    file   = file header (4 KiB) group*
    group  = group header (whole blocks) page*           written by one call
    page   = its bytes, padded to whole blocks           so that a read can land in a DRAM slot directly

A group header names its segment and where it lies, so that what an earlier life of the device left there is not taken for one,
and carries a checksum of itself; every page's own checksum is in it. Integers are little-endian. Pure encoding: no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import xxhash

from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace

BLOCK_BYTES = 4096
MAX_GROUP_PAGES = 512  # one write call takes 1,024 pieces
MAX_HEADER_BYTES = 1 << 20
_RECORD_BYTES = 96  # one record, at most
_TABLE_BYTES = 16  # a table without spaces and records, at most

_FILE = struct.Struct("<8sQQ")  # magic, segment, checksum of the two
_FILE_MAGIC = b"LBKVSEG1"
_GROUP = struct.Struct("<8sQQQIQ")  # magic, segment, where, bytes with pages, table bytes, checksum of table and the rest
GROUP_MAGIC = b"LBKVGRP1"


class Broken(Exception):
    """Not what it should be: torn, flipped, or never written."""


class PageRecord(msgspec.Struct, frozen=True, array_like=True):
    """One page of a group; `offset` counts from the start of the file."""

    space: int  # index into the table's spaces
    digest: bytes
    offset: int
    length: int
    checksum: bytes
    kind: PageKind
    depth: int


class GroupTable(msgspec.Struct, frozen=True, array_like=True):
    spaces: tuple[PageSpace, ...]
    pages: tuple[PageRecord, ...]


class Group(msgspec.Struct, frozen=True):
    """A group as it was found."""

    start: int
    end: int
    table: GroupTable


def padded(length: int) -> int:
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES


def file_header(segment: int) -> bytes:
    """BLOCK_BYTES."""
    named = _FILE_MAGIC + segment.to_bytes(8, "little")
    return _FILE.pack(_FILE_MAGIC, segment, xxhash.xxh3_64_intdigest(named)).ljust(BLOCK_BYTES, b"\0")


def read_file_header(block: bytes) -> int:
    """The segment's number. Raises `Broken`."""
    if len(block) < _FILE.size:
        raise Broken("no file header")
    magic, segment, checksum = _FILE.unpack_from(block)
    if magic != _FILE_MAGIC or checksum != xxhash.xxh3_64_intdigest(block[:16]):
        raise Broken("no file header of this version")
    return int(segment)


class PageToWrite(msgspec.Struct, frozen=True):
    """`data` is `padded(length)` bytes long and aligned to a block; what is behind `length` is written as it is."""

    space: PageSpace
    digest: bytes
    length: int
    checksum: bytes
    kind: PageKind
    depth: int
    data: memoryview


def fitting(pages: Sequence[PageToWrite], room: int) -> int:
    """How many of `pages`, from the first on, make a group of at most `room` bytes."""
    spaces: set[PageSpace] = set()
    header, body = _GROUP.size + _TABLE_BYTES, 0
    for count, page in enumerate(pages[:MAX_GROUP_PAGES]):
        if page.space not in spaces:
            spaces.add(page.space)
            header += len(msgspec.msgpack.encode(page.space))
        header += _RECORD_BYTES
        body += padded(page.length)
        if body + padded(header) > room:
            return count
    return min(len(pages), MAX_GROUP_PAGES)


def group_header(segment: int, start: int, pages: Sequence[PageToWrite]) -> tuple[bytes, GroupTable]:
    """The header of a group that begins at `start`, whole blocks, and where its pages lie."""
    spaces = tuple(dict.fromkeys(page.space for page in pages))
    size = padded(_GROUP.size + len(msgspec.msgpack.encode(_table(spaces, pages, start + (1 << 40)))))
    table = _table(spaces, pages, start + size)
    encoded = msgspec.msgpack.encode(table)
    end = start + size + sum(padded(page.length) for page in pages)
    unsigned = _GROUP.pack(GROUP_MAGIC, segment, start, end - start, len(encoded), 0)
    checksum = xxhash.xxh3_64_intdigest(unsigned + encoded)
    return (_GROUP.pack(GROUP_MAGIC, segment, start, end - start, len(encoded), checksum) + encoded).ljust(size, b"\0"), table


def read_group_size(segment: int, start: int, block: bytes) -> int:
    """Bytes of the header that begins with this block. Raises `Broken`."""
    if len(block) < _GROUP.size:
        raise Broken("the file ends")
    magic, named, where, _, table_bytes, _ = _GROUP.unpack_from(block)
    if (magic, named, where) != (GROUP_MAGIC, segment, start):
        raise Broken("no group begins here")
    size = padded(_GROUP.size + table_bytes)
    if size > MAX_HEADER_BYTES:
        raise Broken("a group header of impossible size")
    return size


def read_group(start: int, header: bytes) -> Group:
    """A whole header, as long as `read_group_size` said. Raises `Broken`."""
    magic, segment, where, size, table_bytes, checksum = _GROUP.unpack_from(header)
    encoded = header[_GROUP.size : _GROUP.size + table_bytes]
    unsigned = _GROUP.pack(magic, segment, where, size, table_bytes, 0)
    if len(encoded) != table_bytes or xxhash.xxh3_64_intdigest(unsigned + encoded) != checksum:
        raise Broken("a torn or flipped group header")
    try:
        table = msgspec.msgpack.decode(encoded, type=GroupTable)
    except msgspec.DecodeError as error:
        raise Broken(f"a group of another version: {error}") from error
    return Group(start, start + size, table)


def _table(spaces: tuple[PageSpace, ...], pages: Sequence[PageToWrite], first: int) -> GroupTable:
    index = {space: number for number, space in enumerate(spaces)}
    records = []
    for page in pages:
        record = PageRecord(index[page.space], page.digest, first, page.length, page.checksum, page.kind, page.depth)
        records.append(record)
        first += padded(page.length)
    return GroupTable(spaces, tuple(records))
