"""Which pages a client asks about together: every page once, in order, in few requests; those waited for are small."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kvtier.client.columns import chunks_to_get, chunks_to_put, mark


@given(st.integers(0, 20_000), st.sampled_from([4096, 65_536, 1 << 20, 16 << 20]))
def test_chunks_cover_every_page_once_and_begin_small(pages: int, page_bytes: int) -> None:
    for chunks in (chunks_to_get(pages, page_bytes), chunks_to_put(pages, page_bytes)):
        assert [page for chunk in chunks for page in range(chunk.start, chunk.stop)] == list(range(pages))
        assert all(chunk.start < chunk.stop for chunk in chunks)
        assert not chunks or chunks[0].stop <= 64
        assert len(chunks) <= 6 + pages // 700
    assert not pages or pages - chunks_to_put(pages, page_bytes)[-1].start <= 64


def test_marks_are_of_one_chunk() -> None:
    marks = [False] * 6
    mark(marks, slice(2, 5), [0, 2])
    assert marks == [False, False, True, False, True, False]
    mark(marks, slice(2, 5), range(3))
    assert marks == [False, False, True, True, True, False]
