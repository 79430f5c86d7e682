from __future__ import annotations

import json

import pytest

from router.body.edits import refuse_reserved
from router.body.scan import Scanner, scan
from router.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from router.errors import BadRequest


def chat(**members: object) -> bytes:
    return json.dumps({"model": "m", "messages": [], **members}).encode()


def test_reads_what_routing_needs() -> None:
    body = chat(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant"}],
        stream=True,
        stream_options={"include_usage": True},
        n=3,
        max_completion_tokens=9,
        prompt_cache_key="k",
        metadata={"user_id": "u"},
        tools=[{"name": "t"}],
        cache_salt="s",
    )
    scanned = scan(body, CHAT)
    assert (scanned.model, scanned.stream, scanned.n, scanned.max_output_tokens) == ("m", True, 3, 9)
    assert (scanned.prompt_cache_key, scanned.user_id, scanned.cache_namespace) == ("k", "u", ("s",))
    assert [bytes(raw) for raw in scanned.messages] == [b'{"role": "user", "content": "hi"}', b'{"role": "assistant"}']
    assert scanned.tools is not None
    assert bytes(scanned.tools) == b'[{"name": "t"}]'
    assert scanned.stream_options == b'{"include_usage": true}'
    assert scanned.asks_usage
    assert scanned.system is None
    assert scanned.prompt is None


def test_what_is_absent_or_null_reads_as_absent() -> None:
    members = ("stream", "stream_options", "n", "max_tokens", "prompt_cache_key", "metadata", "tools", "system")
    for body in (chat(), chat(**dict.fromkeys(members))):
        for scanned in (scan(body, CHAT), scan(body, MESSAGES)):
            assert (scanned.stream, scanned.n, scanned.max_output_tokens, scanned.asks_usage) == (False, 1, None, False)
            assert (
                scanned.stream_options is scanned.prompt_cache_key is scanned.user_id is scanned.tools is scanned.system is None
            )


@pytest.mark.parametrize(
    "odd", [{"n": "two"}, {"n": 0}, {"n": True}, {"max_tokens": "9"}, {"stream_options": 3}, {"metadata": "x"}]
)
def test_odd_values_are_left_to_the_engine(odd: dict[str, object]) -> None:
    scanned = scan(chat(**odd), CHAT)
    assert (scanned.n, scanned.max_output_tokens, scanned.asks_usage, scanned.user_id) == (1, None, False, None)


@pytest.mark.parametrize(
    ("dialect", "members", "system"),
    [
        (MESSAGES, {"system": [{"type": "text", "text": "s"}]}, b'[{"type": "text", "text": "s"}]'),
        (RESPONSES, {"instructions": "s", "input": []}, b'"s"'),
        (CHAT, {"system": "not a member of this protocol"}, None),
    ],
)
def test_system_prompts_are_where_the_dialect_has_them(
    dialect: Dialect, members: dict[str, object], system: bytes | None
) -> None:
    found = scan(chat(**members), dialect).system
    assert (None if found is None else bytes(found)) == system


def test_responses_take_text_or_items_or_nothing() -> None:
    text = scan(b'{"model":"m","input":"hi"}', RESPONSES)
    assert (text.prompt, text.messages) == ("hi", [])
    items = scan(b'{"model":"m","input":[{"role":"user"}]}', RESPONSES)
    assert (items.prompt, [bytes(raw) for raw in items.messages]) == (None, [b'{"role":"user"}'])
    assert scan(b'{"model":"m","previous_response_id":"r"}', RESPONSES).messages == []


def test_a_prompt_is_never_decoded() -> None:
    prompt = scan(b'{"model":"m","prompt":"a\\nb"}', COMPLETIONS).prompt
    assert prompt is not None
    assert not isinstance(prompt, str)
    assert bytes(prompt) == b'"a\\nb"'


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"[]", "must be a JSON object", None),
        (b'"x"', "must be a JSON object", None),
        (b'{"model":"m","messages":[]}x', "not valid JSON", None),
        (b'{"model":"m","messages":[]}{}', "not valid JSON", None),
        (b'{"model":"m","messages":[}', "not valid JSON", None),
        (b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply", None),
        (b'{"messages":[]}', "model is missing", "model"),
        (b'{"model":null,"messages":[]}', "model is missing", "model"),
        (b'{"model":"","messages":[]}', "model is missing", "model"),
        (b'{"model":7,"messages":[]}', "model must be a string", "model"),
        (b'{"model":"m"}', "messages is missing", "messages"),
        (b'{"model":"m","messages":null}', "messages is missing", "messages"),
        (b'{"model":"m","messages":"hi"}', "messages must be a list", "messages"),
        (b'{"model":"m","messages":{"role":"user"}}', "messages must be a list", "messages"),
    ],
)
def test_refuses_what_no_engine_could_serve(body: bytes, message: str, param: str | None) -> None:
    for dialect in (CHAT, MESSAGES):
        with pytest.raises(BadRequest, match=message) as refused:
            scan(body, dialect)
        assert refused.value.param == param


def test_the_last_of_duplicate_keys_counts() -> None:
    body = b'{"model":"a","messages":7,"stream":false,"messages":[1],"model":"b","stream":true,"messages":[2]}'
    scanned = scan(body, CHAT)
    assert (scanned.model, scanned.stream, [bytes(raw) for raw in scanned.messages]) == ("b", True, [b"2"])


def test_lone_surrogates_are_read_and_left_alone() -> None:
    body = b'{"model":"m","messages":[{"content":"cut \\ud83d"}],"x":"\\uDE00"}'
    scanned = scan(body, CHAT)
    assert scanned.body is body
    assert len(scanned.text) == len(body)
    assert bytes(scanned.messages[0]) == b'{"content":"cut \\ufffd"}'


def test_reserved_keys_are_reported_at_the_top_level_only() -> None:
    scanner: Scanner[None] = Scanner({"rid", "bootstrap_room", "model"})
    assert scanner.scan(chat(unknown={"rid": 1}, messages=[{"rid": 2}]), CHAT).reserved == ()
    assert scanner.scan(chat(rid=None, bootstrap_room=5), CHAT).reserved == ("bootstrap_room", "rid")
    assert scanner.scan(b'{"model":"m","messages":[],"r\\u0069d":1}', CHAT).reserved == ("rid",)


def test_reserved_keys_are_refused_by_name() -> None:
    scanned = Scanner({"rid", "kv_hints"}).scan(chat(rid="mine"), CHAT)
    refuse_reserved(scanned, frozenset({"kv_hints"}))
    with pytest.raises(BadRequest, match="rid is set by the gateway") as refused:
        refuse_reserved(scanned, frozenset({"rid"}))
    assert refused.value.param == "rid"
