"""Responses bodies as vLLM takes them: what joins one assistant message; held against the engine in test_prompt_truth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.vllm_responses import responses_as_chat

TEMPLATE = PromptTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
CALL = {"type": "function_call", "call_id": "c1", "name": "run", "arguments": '{"a": 1}'}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def messages(*items: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = responses_as_chat({"model": "m", "input": list(items), **members}, TEMPLATE)["messages"]
    return found


def test_a_text_is_the_users() -> None:
    chat = responses_as_chat(
        {"model": "m", "instructions": "be brief", "input": "hi", "reasoning": {"effort": "low"}}, TEMPLATE
    )
    assert chat["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (chat["reasoning_effort"], "tools" in chat) == ("low", False)


def test_reasoning_text_and_calls_are_one_message_until_one_is_there_twice() -> None:
    said, result, again = messages(REASONING, SAID, CALL, {**CALL, "call_id": "c2"}, OUTPUT, SAID)
    assert (said["reasoning"], said["content"]) == ("hm", "ok")
    assert [call["id"] for call in said["tool_calls"]] == ["c1", "c2"]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "done"}
    assert again == {"role": "assistant", "content": "ok"}
    assert len(messages(SAID, SAID)) == 2


def test_tools_of_namespaces_and_custom_ones_are_functions() -> None:
    tools = [
        {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False},
        {"type": "namespace", "name": "fs", "tools": [{"type": "function", "name": "read", "parameters": {}}]},
        {"type": "custom", "name": "patch", "description": "d"},
        {"type": "web_search"},
    ]
    chat = responses_as_chat({"model": "m", "input": "hi", "tools": tools}, TEMPLATE)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["run", "fs__read", "patch"]
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "é"}
    ((call,),) = ([item["tool_calls"] for item in messages(custom)],)
    assert json.loads(call[0]["function"]["arguments"]) == {"input": "é"}
    (named,) = messages({**CALL, "namespace": "fs"})
    assert named["tool_calls"][0]["function"]["name"] == "fs__run"


@pytest.mark.parametrize(
    "item",
    [
        {**REASONING, "encrypted_content": "x"},
        {"type": "computer_call"},
        {**SAID, "status": "in_progress"},
    ],
)
def test_what_cannot_be_derived_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        messages(item)
