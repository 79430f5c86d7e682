"""Checksums: any flipped bit shows, and pieces sum up to the whole."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kvtier.page.checksum import CHECKSUM_BYTES, page_checksum, parts_checksum


@given(st.binary(min_size=1, max_size=600), st.data())
def test_one_flipped_bit_changes_the_checksum(page: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(page) - 1))
    flipped = bytearray(page)
    flipped[bit // 8] ^= 1 << bit % 8
    assert page_checksum(page) != page_checksum(bytes(flipped))
    assert len(page_checksum(page)) == CHECKSUM_BYTES


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_pieces_sum_up_to_the_whole(parts: list[bytes]) -> None:
    assert parts_checksum(parts) == page_checksum(b"".join(parts))
    assert parts_checksum(memoryview(part) for part in parts) == page_checksum(memoryview(b"".join(parts)))
