from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.body.members import elements, member, members
from router.body.strip import details, is_details_only_chunk, is_usage_only_chunk, strip_member

# As SGLang 0.5.23 sends them.
USAGE = (
    b'data: {"id":"d4","object":"chat.completion.chunk","created":1795985663,"model":"tiny","choices":[],'
    b'"usage":{"prompt_tokens":725,"total_tokens":741,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":704},"reasoning_tokens":0}}\n\n'
)
DETAILS = (
    b'data: {"id":"d4","object":"chat.completion.chunk","created":1795985663,"model":"tiny","choices":[],"usage":null,'
    b'"sglext":{"cached_tokens_details":{"device":704,"host":0}}}\n\n'
)
DELTA = (
    b'data: {"id":"d4","object":"chat.completion.chunk","created":1795985665,"model":"tiny","choices":[{"index":0,"delta":'
    b'{"content":"the \\"usage\\":{ and \\"choices\\":[] of it"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)


@pytest.mark.parametrize(
    ("reply", "stripped"),
    [
        (b'{"k":1}', b"{}"),
        (b'{"k":1,"a":2}', b'{"a":2}'),
        (b'{"a":2,"k":{"k":[1,"}"]}}', b'{"a":2}'),
        (b'{"a":2 , "k" : 1 , "b":3}', b'{"a":2 , "b":3}'),
        (b'{ "a":2, "k":1 }\n', b'{ "a":2 }\n'),
        (b'{"k":1,"k":2,"a":0,"k":3}', b'{"a":0}'),
        (b'{"a":{"k":1},"b":[{"k":2}],"c":"k"}', b'{"a":{"k":1},"b":[{"k":2}],"c":"k"}'),
        (b'{"a":"\\"k\\":1,","k":"\\\\"}', b'{"a":"\\"k\\":1,"}'),
        (b'data: {"a":1,"k":2}\n\n', b'data: {"a":1}\n\n'),
        (b'event: x\ndata: {"k":2}\n\n', b"event: x\ndata: {}\n\n"),
        (b'["k",{"k":1}]', b'["k",{"k":1}]'),
        (b'{"k":1', b'{"k":1'),
        (b'{"k"', b'{"k"'),
        (b'not {"k":1}', b'not {"k":1}'),
    ],
)
def test_a_member_is_cut_and_nothing_else(reply: bytes, stripped: bytes) -> None:
    assert strip_member(reply, "k") == stripped


def test_a_reply_without_the_member_is_the_same_object() -> None:
    reply = b'{"a":1}'
    assert strip_member(reply, "sglext") is reply


keys = st.sampled_from(["k", "a", "b", 'q"', "é", "k\\"])
values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text('k"\\{}[],:é\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values), st.sampled_from([None, 2]), st.booleans())
def test_stripping_is_deleting(value: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    reply = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    stripped = strip_member(reply, "k")
    value.pop("k", None)
    assert list(json.loads(stripped).items()) == list(value.items())


@given(st.dictionaries(keys, values), st.sampled_from([None, 2]))
def test_members_are_spans_of_their_values(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert [json.loads(text[found.value : found.end]) for found in members(text)] == list(value.values())
    assert [json.loads(b'"' + found.key + b'"') for found in members(text)] == list(value)


@pytest.mark.slow
@given(st.lists(values), st.sampled_from([None, 2]))
def test_elements_are_spans_of_their_values(value: list[object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert [json.loads(text[start:end]) for start, end in elements(text)] == value


def test_the_last_of_equal_members_counts() -> None:
    text = b'{"a":1,"a":2}'
    found = member(text, b"a")
    assert found is not None
    assert text[found.value : found.end] == b"2"
    assert member(text, b"b") is None


def test_chunks_that_only_report() -> None:
    assert [is_usage_only_chunk(event) for event in (USAGE, DETAILS, DELTA)] == [True, False, False]
    assert [is_details_only_chunk(event) for event in (USAGE, DETAILS, DELTA)] == [False, True, False]


@pytest.mark.parametrize(
    "event", [b"data: [DONE]\n\n", b": keep-alive\n\n", b'data: {"choices":[]\n\n', b'data: {"choices":[]}\n\n', b""]
)
def test_other_events_report_nothing(event: bytes) -> None:
    assert not is_usage_only_chunk(event)
    assert not is_details_only_chunk(event)
    assert details(event) is None


def test_details_are_found_in_events_and_replies() -> None:
    assert details(DETAILS) == b'{"cached_tokens_details":{"device":704,"host":0}}'
    assert details(b'{"choices":[{}],"sglext":{"a":1}}') == b'{"a":1}'
    assert details(b'{"choices":[{"text":"\\"sglext\\""}],"sglext":null}') is None
