"""Which pages a client asks about together: every page once, in order, in few requests."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kvtier.client.columns import chunks_of, mark


@given(st.integers(0, 20_000), st.sampled_from([4096, 65_536, 1 << 20, 16 << 20, 1 << 30]))
def test_chunks_cover_every_page_once(pages: int, page_bytes: int) -> None:
    chunks = chunks_of(pages, page_bytes)
    assert [page for chunk in chunks for page in range(chunk.start, chunk.stop)] == list(range(pages))
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    assert all(1 <= size <= 2048 for size in sizes)
    assert all(size == 1 or size * page_bytes <= 256 << 20 for size in sizes)
    assert len(chunks) <= 1 + pages // 2048 + pages * page_bytes // (256 << 20)


def test_marks_are_of_one_chunk() -> None:
    marks = [False] * 6
    mark(marks, slice(2, 5), [0, 2])
    assert marks == [False, False, True, False, True, False]
    mark(marks, slice(2, 5), range(3))
    assert marks == [False, False, True, True, True, False]
