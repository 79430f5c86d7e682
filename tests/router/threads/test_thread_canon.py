from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_canon import canonical

from router.threads.canon import MEDIA_BYTES, Canonical, canonical_json, canonical_message, canonical_system, canonical_text


def form(message: object, **dumps: Any) -> Canonical:
    found = canonical_message(json.dumps(message, **dumps).encode())
    assert found is not None
    return found


def call(arguments: object) -> dict[str, object]:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


SAME = {
    "text or one part": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}],
    "input and output text": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "message", "role": "user", "content": ["a"], "id": "msg_1", "status": "completed"},
    ],
    "cache hints": [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},
        {"role": "user", "content": "a"},
    ],
    "no content": [{"role": "assistant", "content": c} for c in (None, "", [])] + [{"role": "assistant"}],
    "reasoning": [
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}],
        },
        {"role": "assistant", "content": "a", "refusal": None},
    ],
    "arguments": [call('{"a": 1,"b":[2]}'), call('{"b":[2],"a":1}'), call({"b": [2], "a": 1})],
    "ids of results": [{"role": "tool", "tool_call_id": i, "content": "r"} for i in ("a", "functions.read:0")],
    "result of an item": [
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        {"type": "function_call_output", "call_id": "2", "id": "x", "output": [{"type": "input_text", "text": "r"}]},
    ],
    "anthropic result": [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": c, "is_error": False}]}
        for i, c in (("1", "r"), ("2", [{"type": "text", "text": "r"}]))
    ],
    "calls of three dialects": [
        {**call('{"a":1}')},
        {"type": "function_call", "name": "read", "arguments": '{ "a": 1 }', "call_id": "1"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "read", "input": {"a": 1}}]},
    ],
}
DIFFERENT: list[object] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "a"},
    {"role": "tool", "content": "a"},
    {"role": "user", "content": "ab"},
    {"role": "user", "content": ["a", "b"]},
    {"role": "user", "content": ["ab", ""]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "v"}}]},
    {"role": "user", "content": [{"type": "tool_result", "content": "a"}]},
    call("a"),
    call('"a"'),
    call({}),
    {"type": "custom_tool_call", "name": "read", "input": "a b"},
    {"type": "web_search_call", "action": {"query": "a"}},
    {"type": "web_search_call", "action": {"query": "b"}},
    {"role": "user", "content": {"odd": 1}},
    {"role": ["odd"], "content": "a"},
    {"role": "assistant", "tool_calls": [{"odd": 1}]},
    {"odd": 1},
    "a",
    1,
    [],
]


@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_bytes(name: str) -> None:
    assert len({form(message).digest for message in SAME[name]}) == 1
    assert len({form(message).size for message in SAME[name]}) == 1


def test_what_a_prompt_shows_differently_differs() -> None:
    assert len({form(message).digest for message in DIFFERENT}) == len(DIFFERENT)


def test_spelling_of_json_does_not_matter() -> None:
    message = {"role": "user", "content": 'é "x" \\ / \n \U0001f600'}
    spellings = [form(message), form(message, ensure_ascii=False), form(message, indent=2)]
    spellings.append(form(dict(reversed(message.items()))))
    escaped = canonical_message(json.dumps(message).replace("/", "\\/").replace("x", "\\u0078").encode())
    assert escaped is not None
    assert {spelling.digest for spelling in [*spellings, escaped]} == {spellings[0].digest}


def test_reasoning_items_have_no_form() -> None:
    assert canonical_message(b'{"type":"reasoning","encrypted_content":"x"}') is None


def test_media_counts_by_its_kind_not_by_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 100_000}}
    for message in ({"role": "user", "content": ["a", image]}, {"role": "tool", "content": [image]}):
        found = form(message)
        assert found.media
        assert MEDIA_BYTES <= found.size < MEDIA_BYTES + 200
    assert not form({"role": "user", "content": 'see "image_url" in the docs'}).media


@pytest.mark.parametrize(
    "raw", [b'{"role":"user","content":"\xff"}', b'{"role":"user","content":["\\ud83d"]}', b"[" * 3000 + b"]" * 3000]
)
def test_what_cannot_be_read_is_taken_as_it_is(raw: bytes) -> None:
    found, other = canonical_message(raw), canonical_message(raw + b" ")
    assert found is not None
    assert other is not None
    assert found.digest != other.digest


def test_text_in_the_place_of_messages_is_a_users() -> None:
    assert canonical_text("hi") == form({"role": "user", "content": "hi"})


def test_tools_and_system() -> None:
    assert canonical_json(b'[{"b":1,"a":2}]').digest == canonical_json(b'[ {"a":2, "b":1} ]').digest
    parts = b'[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]'
    assert canonical_system(parts).digest == canonical_system(b'"s"').digest != canonical_system(b'"t"').digest


keys = st.sampled_from(["a", "b"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"é\n'),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(keys, v, max_size=2),
    max_leaves=4,
)
texts = st.text('ab"\\é\n/', max_size=4)
arguments = st.one_of(values.map(json.dumps), texts, st.dictionaries(keys, values, max_size=2))
parts = st.recursive(
    st.one_of(
        texts,
        st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text"]), "text": texts}),
        st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts}),
        st.fixed_dictionaries({"type": st.just("tool_use"), "name": texts, "input": st.dictionaries(keys, values, max_size=2)}),
        st.fixed_dictionaries({"type": st.just("image"), "source": values}),
    ),
    lambda inner: st.fixed_dictionaries({"type": st.just("tool_result"), "content": st.lists(inner, max_size=2) | texts}),
    max_leaves=3,
)
contents = st.one_of(st.none(), texts, st.lists(parts, max_size=3))
calls = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": texts, "arguments": arguments})}), max_size=2
)
messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": contents},
        optional={"tool_calls": calls, "id": texts},
    ),
    st.fixed_dictionaries({"type": st.just("function_call"), "name": texts, "arguments": arguments}),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "output": contents}),
    st.fixed_dictionaries({"type": st.just("custom_tool_call"), "name": texts, "input": texts}),
)


@pytest.mark.slow
@given(st.lists(messages, min_size=2, max_size=6), st.booleans())
def test_equal_exactly_where_the_reference_is_equal(many: list[dict[str, Any]], ascii_only: bool) -> None:
    digest_of: dict[str, bytes] = {}
    for message in many:
        reference = json.dumps(canonical(message), sort_keys=True)
        digest = form(message, ensure_ascii=ascii_only).digest
        assert digest_of.setdefault(reference, digest) == digest
    assert len(set(digest_of.values())) == len(digest_of)


@pytest.mark.parametrize("raw", [b"7", b"-1", b'"x"', b"null", b"true", b"[]", b"[{}]", b""])
def test_what_is_no_object_is_kept_as_it_is(raw: bytes) -> None:
    found = canonical_message(raw)
    assert found is not None
    assert (found.size, found.media) == (len(raw), False)
    assert found != canonical_message(raw + b"7")


def test_space_before_a_message_changes_nothing() -> None:
    raw = b'{"role":"user","content":"x"}'
    assert canonical_message(b" \n\t\r" + raw) == canonical_message(raw)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "role", "content"]), inner),
    max_leaves=6,
)
MEMBERS = ["role", "type", "content", "tool_calls", "name", "arguments", "input", "output", "text", "function"]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(MEMBERS), ANYTHING | st.lists(st.dictionaries(st.sampled_from(MEMBERS), ANYTHING), max_size=3)
    )
)
def test_any_json_has_a_form(message: dict[str, object]) -> None:
    raw = json.dumps(message).encode()
    assert canonical_message(raw) == canonical_message(raw)
    assert canonical_system(json.dumps([message]).encode()) == canonical_system(json.dumps([message]).encode())


@pytest.mark.parametrize("odd", [{}, [], [{}], {"a": 1}])
@pytest.mark.parametrize("where", ["item", "part"])
def test_a_type_that_is_no_word_tells_messages_apart(odd: object, where: str) -> None:
    def message(kind: object) -> object:
        part = {"type": kind, "text": "a"}
        return {"role": "user", "content": "a", "type": kind} if where == "item" else {"role": "user", "content": [part]}

    assert form(message(odd)) == form(message(odd))
    assert where == "item" or form(message(odd)) != form(message("text"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        call(json.dumps({"a": list(range(300_000))})),
        {"role": "user", "content": [{"type": "text", "text": str(number)} for number in range(20_000)]},
        {"odd": [{"a": number} for number in range(150_000)]},
        {"role": "user", "content": [{"type": "odd", "a": list(range(300_000))}]},
    ],
    ids=["arguments", "parts", "item", "part"],
)
def test_what_is_bulky_counts_as_it_is_written(message: dict[str, object]) -> None:
    assert form(message) == form(message)
    assert form(message) != form(message, separators=(", ", ":  "))
    assert abs(form(message).size - len(json.dumps(message))) < 0.3 * len(json.dumps(message))


def test_bulky_tools_count_as_they_are_written() -> None:
    tools = json.dumps([{"b": list(range(200_000)), "a": {}}])
    assert canonical_json(tools.encode()) == canonical_json(tools.encode())
    assert canonical_json(tools.encode()).size == len(tools)


def test_a_part_longer_than_any_context_counts_as_it_is_written() -> None:
    text = "x" * (5 << 20)
    parts = [
        {"type": "text", "text": text},
        {"type": "text", "text": text + "."},
        {"type": "tool_result", "content": text},
        {"type": "image_url", "image_url": {"url": text}},
        text,
    ]
    forms = [form({"role": "user", "content": [part]}) for part in parts]
    assert forms == [form({"role": "user", "content": [part]}) for part in parts]
    assert len({each.digest for each in forms}) == len(parts)
    assert [each.media for each in forms] == [False, False, False, True, False]
    assert [each.size > len(text) for each in forms] == [True, True, True, False, True]
    assert form({"role": "user", "content": [{"type": "thinking", "thinking": text}]}) == form({"role": "user", "content": []})


def test_a_text_longer_than_any_context_counts_as_it_is_written() -> None:
    text = "é" * (4 << 20)
    user = {"role": "user", "content": text}
    assert form(user, ensure_ascii=False) == form(user | {"id": "m"}, ensure_ascii=False)
    assert form(user, ensure_ascii=False) != form(user)
    assert form(user, ensure_ascii=False).size == len(json.dumps(text, ensure_ascii=False).encode())
    others = [user | {"role": "system"}, {"role": "user", "content": text + "."}, user | {"tool_calls": []}]
    assert len({form(each, ensure_ascii=False).digest for each in (user, *others)}) == 4


def test_a_large_image_is_still_an_image() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (3 << 20)}}
    found = form({"role": "user", "content": [part]})
    assert (found.media, found.size < 2 * MEDIA_BYTES) == (True, True)
