"""Replies put together from chunks, and what counts as broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.swarm.reply import BrokenReply, Reply


def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    return "data: " + json.dumps({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def call_delta(index: int, arguments: str, **head: str) -> dict[str, Any]:
    name = {"name": head["name"]} if "name" in head else {}
    return {"tool_calls": [{"index": index, "id": head.get("id"), "function": {**name, "arguments": arguments}}]}


def test_text_usage_and_end_are_read() -> None:
    reply = Reply()
    brought = [
        reply.feed(line)
        for line in (
            ": keep-alive",
            "",
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk({}, "stop"),
            'data: {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}',
            "data: [DONE]",
        )
    ]
    reply.finish()
    assert brought == [False, False, False, True, True, False, False, False]
    assert reply.as_message() == {"role": "assistant", "content": "Hello"}
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens) == (9, 4)


def test_interleaved_tool_calls_keep_their_arguments_verbatim() -> None:
    reply = Reply()
    reply.feed(chunk(call_delta(0, "", id="a", name="bash")))
    reply.feed(chunk(call_delta(1, '{"x"', id="b", name="read")))
    reply.feed(chunk(call_delta(0, '{"cmd":  "ls"}')))
    reply.feed(chunk(call_delta(1, ": 1}")))
    calls = reply.as_message()["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("a", "bash", '{"cmd":  "ls"}'),
        ("b", "read", '{"x": 1}'),
    ]


@pytest.mark.parametrize("line", ['data: {"error": {"message": "dead prefill"}}', "data: {", 'data: {"choices": 3}'])
def test_error_events_and_garbage_are_broken(line: str) -> None:
    with pytest.raises(BrokenReply):
        Reply().feed(line)


@pytest.mark.parametrize("lines", [[], [chunk({"content": "x"}, "stop")], [chunk({"content": "x"}), "data: [DONE]"]])
def test_a_stream_without_its_end_is_broken(lines: list[str]) -> None:
    reply = Reply()
    for line in lines:
        reply.feed(line)
    with pytest.raises(BrokenReply):
        reply.finish()
