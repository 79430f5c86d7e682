"""A body read from its bytes, and the next one read from its end only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.prompt.chat_body import ChatBody, read_body
from engine_adapters.prompt.hasher import Hasher

HASHER = Hasher(7)
Json = dict[str, Any]

texts = st.text(max_size=8) | st.sampled_from(['"messages": [', "]}", "\\", '"role": "user"', "[null,", "\u2028"])
messages = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "tool"]), texts)
)
orders = st.permutations(["messages", "tools", "model", "stream", "tool_choice"])
written = st.sampled_from([{"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}])


def body_of(sent: list[Json], order: list[str], form: Json, tools: list[Json]) -> bytes:
    members = {"messages": sent, "tools": tools, "model": "m", "stream": True, "tool_choice": "auto"}
    return json.dumps({name: members[name] for name in order}, **form).encode()


def read(body: ChatBody) -> list[Json]:
    return [body.message(index) for index in range(body.count)]


@pytest.mark.slow
@given(
    first=messages.filter(bool),
    further=messages,
    order=orders,
    form=written,
    tools=st.lists(st.fixed_dictionaries({"messages": messages}), max_size=2),
    again=st.booleans(),
)
def test_the_next_body_is_read_from_its_end(
    first: list[Json], further: list[Json], order: list[str], form: Json, tools: list[Json], again: bool
) -> None:
    before = read_body(body_of(first, order, form, tools), None, HASHER)
    assert read(before) == first
    sent = body_of(first + further, order, form, tools if again else [*tools, {"new": 1}])
    after, whole = read_body(sent, before.prefix, HASHER), read_body(sent, None, HASHER)
    assert read(after) == first + further
    assert after.settings == whole.settings
    assert after.keys(HASHER) == whole.keys(HASHER)
    assert (after.prefix.length, after.prefix.digest, list(after.prefix.spans)) == (
        whole.prefix.length,
        whole.prefix.digest,
        list(whole.prefix.spans),
    )
    if again or order.index("messages") < order.index("tools"):
        assert after.same == len(first)
    assert after.role(0) in (first[0]["role"], None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "a"}], "messages": [{"role": "user", "content": "b"}]}',
        b'{"x": {"messages": [{"role": "user", "content": "b"}]}, "messages": [{"role": "user", "content": "b"}]}',
        b'{"messages": [{"role": "user", "content": "b"}], "x": {"messages": [{"role": "user", "content": "b"}]}}',
        b'{"messages":[{"role": "user", "content": "b"}]}',
        b' { "messages" : [ {"role": "user", "content": "b"} ] } ',
    ],
)
def test_the_list_that_counts_is_found(body: bytes) -> None:
    found = read_body(body, None, HASHER)
    assert read(found) == [{"role": "user", "content": "b"}]
    again = read_body(body, found.prefix, HASHER)
    assert read(again) == read(found)


def test_a_second_list_behind_a_known_beginning_is_the_one_that_counts() -> None:
    known = b'{"messages":[{"role":"user","content":"a"}]}'
    before = read_body(known, None, HASHER)
    other = known[:-1] + b',"messages":[{"role":"user","content":"z"}]}'
    assert read(read_body(other, before.prefix, HASHER)) == [{"role": "user", "content": "z"}]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": []}', b'{"messages": 1}', b"{}", b'{"m\\u0065ssages": [{"role": "user"}]}'],
)
def test_what_is_no_chat_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_body(body, None, HASHER)


@pytest.mark.parametrize("message", [b"1", b'"a"', b'{"content": "a"}', b"null"])
def test_what_is_no_message_is_refused_when_it_is_looked_at(message: bytes) -> None:
    body = read_body(b'{"messages": [' + message + b"]}", None, HASHER)
    with pytest.raises(ValueError, match="message 0"):
        body.message(0)


def test_a_role_is_told_unparsed_only_if_it_is_sure() -> None:
    sent = [
        b'{"role": "user", "content": "a"}',
        b'{"content": "a", "role": "user"}',
        b'{"role": "user", "role": "tool"}',
        b'{"role": "User"}',
    ]
    body = read_body(b'{"messages": [' + b", ".join(sent) + b"]}", None, HASHER)
    assert [body.role(index) for index in range(4)] == ["user", None, None, None]


def test_the_head_is_all_but_the_messages() -> None:
    def head(**members: Any) -> bytes:
        return read_body(json.dumps({"messages": [{"role": "user"}], **members}).encode(), None, HASHER).head_key(HASHER)

    assert head(stream=True, temperature=1) == head()
    changes = [
        {"tools": []},
        {"tools": [1]},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {}},
        {"reasoning_effort": "low"},
    ]
    assert len({head(), *(head(**change) for change in changes)}) == 1 + len(changes)
