"""Heads: what crosses this hop, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.wire.head import HOP_BY_HOP, build_head, end_to_end

token = st.text("abcdefghijklmnopqrstuvwxyz-_", min_size=1, max_size=12).map(str.encode)
value = st.binary(max_size=20).map(lambda b: bytes(c for c in b if c >= 0x20 and c != 0x7F))


def test_request_head_byte_for_byte() -> None:
    headers = [
        (b"host", b"gateway:8000"),
        (b"user-agent", b"OpenAI/Python 1.99.1"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"accept", b"*/*"),
        (b"proxy-authorization", b"Basic x"),
        (b"x-dup", b"a"),
        (b"x-dup", b"b, c"),
        (b"content-encoding", b"gzip"),
        (b"authorization", b"Bearer client"),
        (b"content-length", b"99"),
        (b"x-bytes", b"caf\xc3\xa9 \xff"),
        (b"x-empty", b""),
    ]
    head = build_head(
        b"POST", b"/v1/x?beta=true", b"[fd00::1]:3", headers, 7, drop={b"authorization"}, add=[(b"authorization", b"Bearer e")]
    )
    assert head == (
        b"POST /v1/x?beta=true HTTP/1.1\r\nhost: [fd00::1]:3\r\nuser-agent: OpenAI/Python 1.99.1\r\naccept: */*\r\n"
        b"x-dup: a\r\nx-dup: b, c\r\ncontent-encoding: gzip\r\nx-bytes: caf\xc3\xa9 \xff\r\nx-empty: \r\n"
        b"authorization: Bearer e\r\ncontent-length: 7\r\n\r\n"
    )


def test_no_body_declares_none() -> None:
    assert build_head(b"GET", b"/", b"w", [], None) == b"GET / HTTP/1.1\r\nhost: w\r\n\r\n"


def test_reply_keeps_its_length_and_loses_the_hop() -> None:
    headers = [(b"date", b"now"), (b"connection", b"close, x-a"), (b"x-a", b"1"), (b"content-length", b"3"), (b"server", b"u")]
    assert end_to_end(headers, {b"server"}) == [(b"date", b"now"), (b"content-length", b"3")]


@given(st.lists(st.tuples(token, value), max_size=12))
def test_everything_else_keeps_order_and_content(headers: list[tuple[bytes, bytes]]) -> None:
    lines = build_head(b"POST", b"/", b"w", headers, 0).split(b"\r\n")[2:-3]
    rewritten = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
    assert lines == [name + b": " + text for name, text in headers if name not in rewritten]
