"""Streams cut into whole events, whatever the network did to them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.errors import EngineDied
from router.wire.sse import EventSplitter

EVENTS = [
    b'data: {"choices":[]}\n\n',
    b": keep-alive\n\n",
    b'event: message_start\ndata: {"type":"message_start"}\n\n',
    b"data: line one\ndata: line two\n\n",
    b"data: crlf\r\n\r\n",
    b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n",
    b"data: mixed\n\r\n",
    b"data: \xc3\xa9 \\n\\n\n\n",
    b"\n\n",
    b"data: [DONE]\n\n",
]
streams = st.lists(st.sampled_from(EVENTS), max_size=12)
cuts = st.lists(st.integers(0, 400), max_size=30)


def pieces_of(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in at if cut < len(stream)), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges) if end > start]


@given(streams, cuts)
@example([b"data: [DONE]\n\n", b"\n\n"], [15])
def test_any_split_gives_the_same_events(events: list[bytes], at: list[int]) -> None:
    stream = b"".join(events)
    splitter = EventSplitter()
    passed = [splitter.feed(piece) for piece in pieces_of(stream, at)]
    tail = splitter.flush()
    assert b"".join(passed) + tail == stream
    assert tail == (b"\n" if tail and b"\n\n" in events else b""), "half of a blank line that ends nothing is no event"
    assert all(piece == b"" or piece.endswith((b"\n\n", b"\n\r\n")) for piece in passed)


@given(
    st.lists(st.sampled_from([event for event in EVENTS if event.strip()]), max_size=12),
    st.sampled_from([b"data: half", b"data: half\n", b"data: half\r\n", b"data: half\r\n\r", b"e"]),
)
def test_a_tail_is_held_at_any_split(events: list[bytes], tail: bytes) -> None:
    stream = b"".join(events)
    for step in (1, 2, 3, 1000):
        splitter = EventSplitter()
        at = list(range(step, len(stream) + len(tail), step))
        assert b"".join(splitter.feed(piece) for piece in pieces_of(stream + tail, at)) == stream
        assert splitter.flush() == tail


@given(st.binary(max_size=200), cuts)
def test_arbitrary_bytes_are_never_lost_or_changed(stream: bytes, at: list[int]) -> None:
    splitter = EventSplitter()
    passed = b"".join(splitter.feed(piece) for piece in pieces_of(stream, at))
    assert passed + splitter.flush() == stream


def test_whole_events_pass_as_the_object_they_came_as() -> None:
    data = b"data: 1\n\ndata: 2\n\n"
    assert EventSplitter().feed(data) is data


def test_events_are_bounded_and_cheap_to_collect() -> None:
    splitter = EventSplitter(max_event_bytes=1000)
    for _ in range(10):
        assert splitter.feed(b"x" * 100) == b""
    with pytest.raises(EngineDied, match="1000 bytes"):
        splitter.feed(b"x")
    small = EventSplitter(max_event_bytes=1000)
    assert small.feed(b"x" * 999 + b"\n") == b""
    assert len(small.feed(b"\n")) == 1001
