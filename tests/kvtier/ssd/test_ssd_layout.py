"""Headers: what is encoded is found again, and anything flipped or foreign is refused."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from ssd_pages import OTHER_SPACE, SPACE, digest, page

from kvtier.ssd.layout import (
    BLOCK_BYTES,
    MAX_GROUP_PAGES,
    Broken,
    Group,
    file_header,
    fitting,
    group_header,
    padded,
    read_file_header,
    read_group,
    read_group_size,
)

PAGES = [page(number, 5000 if number % 2 else 4096, OTHER_SPACE if number == 3 else SPACE) for number in range(60)]


def test_a_group_is_found_as_it_was_written() -> None:
    header, table = group_header(7, 8192, PAGES)
    assert len(header) % BLOCK_BYTES == 0
    size = read_group_size(7, 8192, header[:BLOCK_BYTES])
    group = read_group(8192, header[:size])
    assert group.table == table
    assert group.end == 8192 + len(header) + sum(padded(each.length) for each in PAGES)
    assert [record.offset % BLOCK_BYTES for record in table.pages] == [0] * 60
    assert table.pages[0].offset == 8192 + len(header)
    assert [table.spaces[record.space] for record in table.pages] == [each.space for each in PAGES]
    assert [record.digest for record in table.pages] == [digest(number) for number in range(60)]


@given(st.data())
def test_any_flipped_bit_of_a_group_header_shows(data: st.DataObject) -> None:
    header, _ = group_header(7, 8192, PAGES[:5])
    used = len(header.rstrip(b"\0"))
    bit = data.draw(st.integers(0, 8 * used - 1))
    flipped = bytearray(header)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Broken):
        read(bytes(flipped))


def read(header: bytes) -> Group:
    return read_group(8192, header[: read_group_size(7, 8192, header[:BLOCK_BYTES])])


def test_a_group_of_another_segment_or_place_is_none() -> None:
    header, _ = group_header(7, 8192, PAGES[:1])
    for segment, start in ((8, 8192), (7, 4096)):
        with pytest.raises(Broken):
            read_group_size(segment, start, header[:BLOCK_BYTES])
    for end in (b"", b"\0" * BLOCK_BYTES):
        with pytest.raises(Broken):
            read_group_size(7, 8192, end)


def test_file_headers() -> None:
    header = file_header(12)
    assert (len(header), read_file_header(header)) == (BLOCK_BYTES, 12)
    for broken in (b"", b"\0" * BLOCK_BYTES, header[:8] + b"\1" + header[9:], b"LBKVSEG9" + header[8:]):
        with pytest.raises(Broken):
            read_file_header(broken)


@given(st.integers(1, 60), st.integers(0, 400_000))
def test_what_fits_fits(count: int, room: int) -> None:
    fit = fitting(PAGES[:count], room)
    if fit:
        header, _ = group_header(2**40, 2**50, PAGES[:fit])
        assert len(header) + sum(padded(each.length) for each in PAGES[:fit]) <= room
    assert fitting(PAGES[:count], 1 << 30) == count
    assert fitting(PAGES[:1] * 1000, 1 << 40) == MAX_GROUP_PAGES
