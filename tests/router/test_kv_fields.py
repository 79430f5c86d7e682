"""How the bodies of `/v1/kv` are read: as a whole JSON parser would read them, but in pieces, and refused by what is wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from router.errors import BadRequest, BodyTooLarge
from router.kv_fields import NamesPrompt, page_digests, read_body, token_ids
from router.prefetch.api import PrefetchBody
from router.tiers.pins_api import PinBody

JUNK = st.one_of(
    st.none(), st.floats(allow_nan=False), st.text(), st.lists(st.integers()), st.integers(max_value=-1), st.just(1 << 32)
)


async def read(body: object, kind: type[NamesPrompt] = PinBody) -> Any:
    """`body` as it comes over the wire, in small parts."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = [raw[at : at + 1000] for at in range(0, len(raw), 1000)] or [b""]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    return await read_body(Request({"type": "http", "method": "POST", "headers": []}, receive), kind)


@settings(deadline=None, max_examples=50)
@given(
    ids=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=50),
    times=st.sampled_from([1, 500]),
    gap=st.sampled_from([0, 1]),
)
def test_token_ids_are_what_json_says(ids: list[int], times: int, gap: int) -> None:
    text = json.dumps(ids * times, separators=(", "[: 1 + gap], ":"))
    assert list(asyncio.run(token_ids(Raw(text.encode())))) == ids * times


@settings(deadline=None, max_examples=50)
@given(junk=JUNK, before=st.integers(0, 20_000))
def test_one_wrong_id_anywhere_is_refused(junk: object, before: int) -> None:
    text = json.dumps([7] * before + [junk] + [8])
    with pytest.raises(BadRequest) as refused:
        asyncio.run(token_ids(Raw(text.encode())))
    assert refused.value.param == "tokens"


@pytest.mark.parametrize("raw", [b"[]", b"[ ]", b"3", b'"[1]"', b"{}", b"true"])
async def test_what_is_no_list_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        await token_ids(Raw(raw))
    with pytest.raises(BadRequest):
        await page_digests(Raw(raw))


async def test_others_run_between_the_pieces() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    ids = await token_ids(Raw(json.dumps([123_456] * (1 << 20)).encode()))
    before = turns
    digests = await page_digests(Raw(json.dumps(["ab" * 32] * 65_536).encode()))
    counting.cancel()
    assert (len(ids), len(digests)) == (1 << 20, 32 * 65_536)
    assert before > 100
    assert turns - before > 50


async def test_more_tokens_than_any_context_are_refused() -> None:
    with pytest.raises(BadRequest, match="at most"):
        await token_ids(Raw(b"[" + b"1," * (1 << 20) + b"1]"))


@pytest.mark.parametrize("bad", ["zz" * 32, "ab", "ab" * 33, 7, None, "a,b", ["ab" * 32]])
async def test_hashes_are_whole_digests(bad: object) -> None:
    with pytest.raises(BadRequest) as refused:
        await page_digests(Raw(json.dumps(["ab" * 32, bad]).encode()))
    assert refused.value.param == "hashes"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thread": "t", "colour": 1}, "colour"),
        ({"thread": 7}, "thread"),
        ({"thread": "t" * 2000}, "thread"),
        ({"thread": "t", "ttl_s": 0}, "ttl_s"),
        ({"thread": "t", "ttl_s": "5"}, "ttl_s"),
        ({}, None),
        ({"thread": "t", "tokens": [1]}, None),
        ({"thread": None, "tokens": None, "hashes": None}, None),
        ([], None),
        (b"", None),
        (b"\xff", None),
        (b'{"thread":"\\ud800"}', None),
        (b'{"tokens":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    ],
)
async def test_what_is_wrong_is_named(body: object, param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        await read(body)
    assert refused.value.param == param


async def test_messages_stay_raw() -> None:
    body = await read({"messages": [{"role": "user", "content": "hi"}], "priority": 3}, PrefetchBody)
    assert (json.loads(bytes(body.messages))[0]["content"], body.priority, body.has("tools")) == ("hi", 3, False)
    with pytest.raises(BadRequest, match="not thread, messages"):
        await read({"messages": [], "thread": "t"}, PrefetchBody)


async def test_long_bodies_are_refused_before_they_are_read() -> None:
    with pytest.raises(BodyTooLarge):
        await read(b'{"tokens":[' + b"1," * (9 << 20) + b"1]}")
