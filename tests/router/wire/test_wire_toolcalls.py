"""Tool calls are noticed when their JSON closes: in every dialect, at any split, on what real engines sent."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dialects.dialect import DialectName, split_blocks
from router.wire.toolcalls import JsonEnd, ToolCallTracker

SAMPLES = Path(__file__).parents[2] / "data" / "wire"
texts = st.text(max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3)


@given(arguments, st.booleans(), st.lists(st.integers(0, 200), max_size=20))
def test_json_closes_at_its_last_character_at_any_split(value: dict[str, object], ascii_only: bool, at: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    end = JsonEnd()
    edges = [0, *sorted(cut for cut in at if cut < len(text)), len(text)]
    for start, stop in itertools.pairwise(edges):
        assert end.feed(text[start:stop]) == (stop == len(text))


def sse(*events: object) -> list[bytes]:
    return [b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events]


def chat(
    index: int, name: str | None = None, arguments: str | None = None, finish: str | None = None, choice: int = 0
) -> object:
    call = {"index": index, "id": f"call_{index}" if name else None, "function": {"name": name, "arguments": arguments}}
    delta = {"content": None, "tool_calls": [call]} if finish is None else {}
    return {"choices": [{"index": choice, "delta": delta, "finish_reason": finish}]}


def run(dialect: DialectName, events: list[bytes]) -> list[tuple[int, int, str, str]]:
    """(number of the event that closed it, index, name, id) of each call, fed event by event as the relay does."""
    tracker = ToolCallTracker(dialect)
    closed: list[tuple[int, int, str, str]] = []
    for number, event in enumerate(events):
        if tracker.concerns(event):
            tracker.feed(event, now_ms=float(number))
        for call in tracker.closed[len(closed) :]:
            assert call.closed_ms == number
            closed.append((number, call.index, call.name, call.call_id))
    return closed


def test_chat() -> None:
    events = sse(
        {"choices": [{"index": 0, "delta": {"content": 'Let me see "tool_calls":[', "tool_calls": None}}]},
        chat(0, "read", ""),
        chat(0, None, '{"path": "a}'),
        chat(0, None, '\\"b"}'),
        chat(1, "list", '{"dir": "."}'),
        chat(1, None, ""),
        chat(0, finish="tool_calls"),
    )
    assert run(DialectName.CHAT, events) == [(3, 0, "read", "call_0"), (4, 1, "list", "call_1")]


def test_chat_calls_without_closing_json_end_with_the_next_or_with_the_reply() -> None:
    events = sse(chat(0, "a", "12"), chat(1, "b", '{"x"'), chat(0, finish="length"))
    assert run(DialectName.CHAT, events) == [(1, 0, "a", "call_0"), (2, 1, "b", "call_1")]


def test_chat_choices_are_told_apart_and_repeated_names_open_nothing_new() -> None:
    events = sse(
        chat(0, "a", '{"x":', choice=0),
        chat(0, "b", "{", choice=1),
        chat(0, "a", "1}", choice=0),
        chat(0, "a", "", choice=0),
        chat(0, "b", "}", choice=1),
    )
    assert run(DialectName.CHAT, events) == [(2, 0, "a", "call_0"), (4, 0, "b", "call_0")]


def test_responses() -> None:
    item = {"type": "function_call", "name": "shell", "call_id": "call_9", "arguments": ""}
    custom = {"type": "custom_tool_call", "name": "apply_patch", "call_id": "call_10", "input": ""}
    events = sse(
        {"type": "response.output_item.added", "output_index": 1, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"cmd": ["ls"'},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "]}"},
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": '{"cmd": ["ls"]}'},
        {"type": "response.output_item.done", "output_index": 1, "item": item},
        {"type": "response.output_item.added", "output_index": 2, "item": custom},
        {"type": "response.custom_tool_call_input.delta", "output_index": 2, "delta": "*** {"},
        {"type": "response.custom_tool_call_input.done", "output_index": 2, "input": "*** {"},
    )
    assert run(DialectName.RESPONSES, events) == [(2, 1, "shell", "call_9"), (7, 2, "apply_patch", "call_10")]


def test_messages() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    events = sse(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": block},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"f": "x"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {**block, "id": "toolu_2", "name": "Now"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    )
    assert run(DialectName.MESSAGES, events) == [(5, 1, "Read", "toolu_1"), (8, 2, "Now", "toolu_2")]


def test_completions_have_no_tools() -> None:
    tracker = ToolCallTracker(DialectName.COMPLETIONS)
    assert not tracker.concerns(sse(chat(0, "a", "{}"))[0])


@pytest.mark.parametrize("dialect", list(DialectName))
@pytest.mark.parametrize(
    "data",
    [
        b"data: [DONE]\n\n",
        b"data: not json\n\n",
        b"data: []\n\n",
        b'data: {"choices":{"a":1}}\n\n',
        b": comment\n\n",
        b"data: " + b"[" * 5000 + b"\n\n",
    ],
)
def test_anything_else_is_ignored(dialect: DialectName, data: bytes) -> None:
    tracker = ToolCallTracker(dialect)
    tracker.feed(data)
    assert tracker.closed == []


@pytest.mark.parametrize(
    ("sample", "closed"),
    [("sglang_tools.sse", [("get_weather", '{"city": "Paris"}')]), ("vllm_tools.sse", [("get_weather", None)] * 5)],
)
def test_recorded_streams(sample: str, closed: list[tuple[str, str | None]]) -> None:
    stream = (SAMPLES / sample).read_bytes()
    events = [block + b"\n\n" for block in split_blocks(stream)]
    calls = run(DialectName.CHAT, events)
    assert [name for _, _, name, _ in calls] == [name for name, _ in closed]
    for (number, *_), (_, text) in zip(calls, closed, strict=True):
        if text is not None:
            said = "".join(_arguments(event) for event in events[: number + 1])
            assert said == text


def _arguments(event: bytes) -> str:
    choices = json.loads(event[6:])["choices"]
    return "".join(
        call["function"].get("arguments") or "" for choice in choices for call in choice["delta"].get("tool_calls") or ()
    )
