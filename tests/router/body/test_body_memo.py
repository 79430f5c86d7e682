"""A body that begins like one seen before must read exactly as if it were read whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.body.memo import PrefixMemo
from router.body.scan import Scanner
from router.body.scanned import Scanned
from router.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from router.errors import BadRequest

RESERVED = ("rid", "bootstrap_room")
History = tuple[bytes, ...]


def scanner(chunk_bytes: int = 48) -> Scanner[History]:
    return Scanner(RESERVED, PrefixMemo(chunk_bytes=chunk_bytes, seed=1))


def read(reader: Scanner[History], body: bytes, dialect: Dialect) -> tuple[Any, ...]:
    """Everything that a scan says, with all messages; the state that the memo carries is the messages so far."""
    try:
        scanned = reader.scan(body, dialect)
    except BadRequest as error:
        return ("refused", error.message, error.param)
    history: History = scanned.checkpoint.state if scanned.checkpoint is not None else ()
    assert len(history) == scanned.first_message
    states = []
    for raw in scanned.messages:
        history = (*history, bytes(raw))
        states.append(history)
    reader.remember(scanned, states)
    return (*said(scanned), history)


def said(scanned: Scanned[Any]) -> tuple[Any, ...]:
    return (
        scanned.model,
        scanned.stream,
        scanned.n,
        scanned.max_output_tokens,
        scanned.stream_options,
        scanned.asks_usage,
        scanned.prompt_cache_key,
        scanned.user_id,
        scanned.reserved,
        scanned.cache_namespace,
        scanned.prompt,
        None if scanned.tools is None else bytes(scanned.tools),
        None if scanned.system is None else bytes(scanned.system),
    )


def resumed(reader: Scanner[History], body: bytes, dialect: Dialect = CHAT) -> int:
    """How many messages of `body` are not parsed again."""
    return reader.scan(body, dialect).first_message


def dump(value: object, style: str) -> str:
    if style == "compact":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(value, indent=1 if style == "lines" else None)


texts = st.sampled_from(
    [
        "",
        "a",
        "x" * 50,
        'say "hi"',
        '"messages":[{"role":"user"}',
        "}]}",
        "\\",
        "é\U0001f600\u2028",
        "\n\t",
        "\ud83d",
        "[{",
        "tools",
    ]
) | st.text(alphabet='ab"\\{}[],:\n é', max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["messages", "role", "input", "k"]), inner, max_size=2)
    ),
    max_leaves=5,
)
messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": texts | values})
odd = st.integers(0, 19).flatmap(lambda roll: values if roll == 0 else messages)  # now and then an element that is no message
heads = st.lists(
    st.tuples(
        st.sampled_from(["stream", "n", "max_tokens", "max_completion_tokens"]), st.sampled_from([True, False, None, 1, 3, "1"])
    )
    | st.tuples(st.just("stream_options"), st.sampled_from([{"include_usage": True}, {}, None]))
    | st.tuples(st.sampled_from(["tools", "system", "instructions", "metadata", "unknown", "role"]), values)
    | st.tuples(
        st.sampled_from(["rid", "prompt_cache_key", "cache_salt", "bootstrap_room", "input", "previous_response_id"]), texts
    )
    | st.tuples(st.just("metadata"), st.fixed_dictionaries({"user_id": texts, "messages": st.lists(messages, max_size=1)})),
    max_size=5,
)
styles = st.sampled_from(["compact", "spaced", "lines"])


@st.composite
def turns(draw: st.DrawFn) -> tuple[Dialect, list[bytes]]:
    """One client's bodies: a history that grows, is edited in the middle, or gets its members in another order."""
    dialect = draw(st.sampled_from([CHAT, RESPONSES, MESSAGES]))
    before, after = draw(heads), draw(heads)
    where = draw(st.integers(0, 20))
    before, after = before + [("model", "m")] * (where < 12), after + [("model", "m")] * (12 <= where < 20)
    history = draw(st.lists(messages, min_size=2, max_size=6))
    bodies = []
    style = draw(styles)
    for _ in range(draw(st.integers(1, 6))):
        change = draw(
            st.sampled_from(["grow", "grow", "grow", "grow", "grow", "edit", "cut", "head", "tail", "style", "again"])
        )
        if change == "grow":
            history = history + draw(st.lists(odd, max_size=3))
        elif change == "edit" and history:
            at = draw(st.integers(0, len(history) - 1))
            history = [*history[:at], draw(odd), *history[at + 1 :]]
        elif change == "cut":
            history = history[: draw(st.integers(0, len(history)))]
        elif change == "head":
            before = [*draw(heads), ("model", "m")]
        elif change == "tail":
            after = [*draw(heads), ("model", "n")]
        elif change == "style":
            style = draw(styles)
        bodies.append(write(draw, dialect, before, history, after, style))
    return dialect, bodies


def write(draw: st.DrawFn, dialect: Dialect, before: list[Any], history: list[Any], after: list[Any], style: str) -> bytes:
    members = [*before, (dialect.message_key, history)]
    if draw(st.integers(0, 9)) == 0:
        members += [
            (dialect.message_key, draw(st.lists(odd, max_size=2) | values))
        ]  # a second conversation: the last one counts
    members += after
    colon, comma = (":", ",") if style == "compact" else (": ", ", ") if style == "spaced" else (" :\n", "\n ,")
    text = "{" + comma.join(f"{dump(key, style)}{colon}{dump(value, style)}" for key, value in members) + "}"
    body = text.encode("utf-8", "surrogatepass" if "\ud83d" not in text else "backslashreplace")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(body)))
        body = (
            body[:at] + draw(st.sampled_from([b"", b"x", b",", b'"', b"]", b"}", b"1"])) + body[at + draw(st.integers(0, 1)) :]
        )
    return body


def check(case: tuple[Dialect, list[bytes]], chunk_bytes: int) -> None:
    dialect, bodies = case
    reader = scanner(chunk_bytes)
    for body in bodies:
        assert read(reader, body, dialect) == read(Scanner(RESERVED), body, dialect)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(turns(), st.sampled_from([16, 48, 200]))
def test_resumed_equals_fresh(case: tuple[Dialect, list[bytes]], chunk_bytes: int) -> None:
    check(case, chunk_bytes)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(turns(), st.sampled_from([16, 48, 200]))
def test_resumed_equals_fresh_at_length(case: tuple[Dialect, list[bytes]], chunk_bytes: int) -> None:
    check(case, chunk_bytes)


def chat(messages: list[object], *, before: str = "", after: str = "") -> bytes:
    return f'{{"model":"m",{before}"messages":{json.dumps(messages)}{after}}}'.encode()


LONG = [
    {"role": "user", "content": f"message number {n}, long enough to fill a chunk or two of sixty-four bytes"}
    for n in range(20)
]


@pytest.mark.parametrize("tools", [{"before": '"tools":[{"name":"t"}],'}, {"after": ',"tools":[{"name":"t"}]'}])
def test_only_the_new_part_is_parsed(tools: dict[str, str]) -> None:
    reader = scanner(64)
    for count in range(2, 20):
        body = chat(LONG[:count], **tools)
        assert resumed(reader, body) >= count - 3
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)


def test_a_fork_resumes_where_it_leaves() -> None:
    reader = scanner(64)
    read(reader, chat(LONG), CHAT)
    assert 8 <= resumed(reader, chat([*LONG[:10], {"role": "user", "content": "something else"}])) <= 10


def test_other_heads_do_not_resume() -> None:
    reader = scanner(64)
    read(reader, chat(LONG), CHAT)
    assert resumed(reader, chat(LONG, before='"stream":true,')) == 0


def test_dialects_do_not_share_checkpoints() -> None:
    reader = scanner(64)
    read(reader, chat(LONG), CHAT)
    assert resumed(reader, chat(LONG), CHAT) > 0
    assert resumed(reader, chat(LONG), MESSAGES) == 0


def test_a_second_conversation_in_the_new_part_counts() -> None:
    reader = scanner(64)
    read(reader, chat(LONG), CHAT)
    body = chat(LONG, after=',"messages":[{"role":"user","content":"only this"}]')
    assert [bytes(raw) for raw in reader.scan(body, CHAT).messages] == [b'{"role":"user","content":"only this"}']


def test_the_first_of_two_conversations_is_not_taken_for_the_second() -> None:
    """Both lists begin alike and have messages that end at the same place; what was parsed is the second."""
    reader = scanner(100)
    first = b'{"role":"user"},' + b'{"role":"user","content":"a"},{"role":"user","content":"b"}'
    second = b'{"role":"user"},' + b'{"role":"user","content":"%b"}' % (31 * b"a")
    assert len(first) == len(second)
    assert len(b'{"model":"m","messages":[' + first) == 100
    twice = b'{"model":"m","messages":[%b],"messages":[%b]}'
    read(reader, twice % (first, second), CHAT)
    for rest in (b',{"role":"user","content":"c"}', b""):
        body = b'{"model":"m","messages":[%b]}' % (first + rest)
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)


def test_a_number_at_a_boundary_is_not_taken_for_whole() -> None:
    reader = scanner(16)
    for rest in (b",5]}", b"8]}", b"e1]}", b".5,6]}", b"]}"):
        body = b'{"model":"m","messages":[1234567' + rest
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)


def test_a_key_that_ends_like_the_conversations_is_not_it() -> None:
    reader = scanner(64)
    body = b'{"model":"m","my \\"messages":%b,"messages":%b}' % ((json.dumps(LONG).encode(),) * 2)
    read(reader, body, CHAT)
    with pytest.raises(BadRequest, match="messages is missing"):
        reader.scan(b'{"model":"m","my \\"messages":%b}' % json.dumps(LONG).encode(), CHAT)


def test_a_mended_head_reads_the_same_again() -> None:
    reader = scanner(64)
    for count in (10, 15, 20):
        body = chat(LONG[:count], before='"tools":["cut \\ud83d"],')
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)


@pytest.mark.parametrize("hidden", ['{"messages":[{"role":"user","content":"', '"messages":[{"role":"user","content":"message'])
def test_a_key_inside_a_string_or_an_object_opens_nothing(hidden: str) -> None:
    reader = scanner(64)
    for body in (
        chat(LONG, before=f'"note":{json.dumps(hidden * 9)},'),
        chat(LONG, before=f'"note":{{"messages":{json.dumps(LONG)}}},'),
        chat(LONG[:3], after=f',"note":{{"messages":{json.dumps(LONG)}}}'),
    ):
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)
        assert read(reader, body, CHAT) == read(Scanner(RESERVED), body, CHAT)


def test_reserved_keys_before_the_conversation_are_found_again() -> None:
    reader = scanner(64)
    for count in (10, 15):
        assert read(reader, chat(LONG[:count], before='"rid":"mine",'), CHAT)[8] == ("rid",)


def test_lone_surrogates_in_the_history_do_not_keep_it_from_being_remembered() -> None:
    reader = scanner(64)
    history = [{"role": "tool", "content": "cut \ud83d"}, *LONG]
    assert read(reader, chat(history), CHAT) == read(Scanner(RESERVED), chat(history), CHAT)
    assert resumed(reader, chat([*history, LONG[0]])) > 15


def test_the_memo_is_bounded() -> None:
    memo: PrefixMemo[History] = PrefixMemo(10, chunk_bytes=64, seed=1)
    reader: Scanner[History] = Scanner(RESERVED, memo)
    for start in range(15):
        read(reader, chat(LONG[start:]), CHAT)
    assert 0 < len(memo) <= 10
