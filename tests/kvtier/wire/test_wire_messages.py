"""Frames and messages: nothing is lost on the way, and nonsense is refused."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace, Shard
from kvtier.page.status import Status
from kvtier.wire import messages
from kvtier.wire.frames import HEADER_BYTES, MAX_BODY_BYTES, FrameError, Header, pack_frame, unpack_header
from kvtier.wire.messages import (
    Acquired,
    Attach,
    Column,
    Done,
    EventBatch,
    EventRun,
    Events,
    MessageError,
    Peer,
    Reserve,
    Stage,
    decode_reply,
    decode_request,
    encode,
)

SPACE = PageSpace("m", "bf16", "page_first", 16, shard=Shard(1, 2))
DEEP = b"\x91" * 50_000 + b"\0"  # lists in lists, where a later version may have a field


@pytest.mark.parametrize(
    "request_",
    [
        Attach(SPACE),
        Reserve(0, b"d" * 64, 10, 5, PageKind.SYSTEM_PROMPT),
        Stage(1, b"d" * 32, [Peer("b", "127.0.0.1", 20200)], 500.0),
        messages.AskStats(),
    ],
)
def test_requests_survive_the_wire(request_: messages.Request) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Acquired(3, b"\0\1", Column([4096]), Column([10]), Column([7]), b"c" * 16, b"\2", Column([0]), {1: "node-b"}, 10.0),
        Events(1, [EventBatch(0, [EventRun(True, 3, b"h" * 8, 16)])], snapshot=True),
        Done(Status.CORRUPT),
    ],
)
def test_replies_survive_the_wire(reply: messages.Reply) -> None:
    assert decode_reply(encode(reply)) == reply


def test_a_reply_is_no_request_and_noise_is_neither() -> None:
    for body in (encode(Done()), b"", b"\xc1", b"\x91\xcd\xff\xff", b"\x92\x1f" + DEEP):
        with pytest.raises(MessageError, match="protocol version"):
            decode_request(body)
    for body in (encode(Attach(SPACE)), b"\x93\x22\x00" + DEEP):
        with pytest.raises(MessageError):
            decode_reply(body)


@pytest.mark.parametrize("column", [b"123", [1], [1 << 63], "abcdefgh", None, {1: 2}, 5])
def test_what_is_no_column_makes_no_reply(column: object) -> None:
    body = msgspec.msgpack.encode([messages.Acquired.__struct_config__.tag, 1, b"", column, b"", b"", b"", b"", b"", {}, 1.0])
    with pytest.raises(MessageError):
        decode_reply(body)


def test_a_later_version_may_add_fields() -> None:
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(messages.Look(1, b"d" * 32, "w"))), "something new"])
    assert decode_request(longer) == messages.Look(1, b"d" * 32, "w")


def test_tags_are_distinct_and_stay() -> None:
    tags = {kind.__name__: kind.__struct_config__.tag for kind in (*messages.Request.__args__, *messages.Reply.__args__)}
    assert sorted(tags.values()) == [tag for tag in range(1, len(tags) + 2) if tag != 13]  # which was one of version 1
    assert (tags["Greeting"], tags["Acquire"], tags["Commit"], tags["Refused"]) == (1, 6, 12, 35)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=100), st.integers(0, 1 << 30))
def test_frames(call: int, body: bytes, payload_bytes: int) -> None:
    frame = pack_frame(call, body, payload_bytes)
    assert unpack_header(frame[:HEADER_BYTES]) == Header(call, len(body), payload_bytes)
    assert frame[HEADER_BYTES:] == body


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(FrameError, match="fewer pages"):
        pack_frame(1, b"", 1 << 40)
    with pytest.raises(FrameError, match="not one of ours"):
        unpack_header(b"GET / HTTP/1.1\r\n")
    assert MAX_BODY_BYTES < 2**32
