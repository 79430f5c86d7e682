"""Checksums: any flipped bit shows, and pieces sum up to the whole."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtier.page.checksum import CHECKSUM_BYTES, bound_checksums, page_checksum, parts_checksum, split_checksums


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


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32)), max_size=20))
def test_a_bound_checksum_fits_its_own_name_alone(pages: list[tuple[bytes, bytes]]) -> None:
    checksums, digests = b"".join(checksum for checksum, _ in pages), [digest for _, digest in pages]
    bound = bound_checksums(checksums, digests)
    assert bound_checksums(bound, digests) == checksums
    for at in range(len(pages)):
        for byte in (3, 19):
            other = bytearray(digests[at])
            other[byte] ^= 1
            back = split_checksums(bound_checksums(bound, [*digests[:at], bytes(other), *digests[at + 1 :]]))
            assert [each == was for each, (was, _) in zip(back, pages, strict=True)] == [
                each != at for each in range(len(pages))
            ]


def test_checksums_of_other_pages_are_not_bound() -> None:
    with pytest.raises(ValueError, match="for 2 pages"):
        bound_checksums(bytes(16), [bytes(32)] * 2)
