"""Prompts come out as SGLang's: token counts captured from the engine, and the rules behind them one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER
from engine_adapters.prompt.sglang_chat import render_chat, template_messages, template_tools, template_variables
from engine_adapters.prompt.sglang_messages import messages_as_chat
from engine_adapters.prompt.sglang_responses import chat_tools, effective_tool_choice, responses_as_chat
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer

TINY = PromptTemplate.from_folder(DEFAULT_MODEL_FOLDER)
TOKENIZER = Tokenizer.from_folder(DEFAULT_MODEL_FOLDER)
LEADING = PromptTemplate(
    "{{ messages[0].content }}{% for m in messages[1:] %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)

CAPTURED = json.loads((Path(__file__).parents[2] / "data" / "sglang_wire" / "replies.json").read_text(encoding="utf-8"))
TRANSLATE = {
    "/v1/chat/completions": lambda body: body,
    "/v1/responses": lambda body: responses_as_chat(body, TINY),
    "/v1/messages": lambda body: messages_as_chat(body, TINY),
}


def counted(reply: dict[str, Any]) -> int:
    """Prompt tokens that the engine reported, whichever dialect."""
    usage = reply["usage"]
    if "prompt_tokens" in usage:
        return int(usage["prompt_tokens"])
    return int(usage["input_tokens"]) + int(usage.get("cache_read_input_tokens", 0))


WHOLE = [case for case in CAPTURED if case["status"] == 200 and case["path"] in TRANSLATE and not case["body"].get("stream")]


@pytest.mark.parametrize("case", WHOLE, ids=[f"{case['case']}-{case['leg']}" for case in WHOLE])
def test_token_counts_are_the_engines(case: dict[str, Any]) -> None:
    text = render_chat(TINY, TRANSLATE[case["path"]](case["body"]))
    assert len(TOKENIZER.encode_prompt(text)) == counted(json.loads(case["reply"]))


def test_tools_show_members_no_client_sent_in_the_clients_order() -> None:
    tool = {"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "name": "f", "unknown": 1}}
    [shown] = template_tools({"tools": [tool]}) or []
    function = '{"parameters": {"b": 1, "a": 2}, "name": "f", "description": null}'
    assert json.dumps(shown) == f'{{"type": "function", "function": {function}, "defer_loading": null}}'
    strict = {"type": "function", "function": {"name": "f", "strict": True}, "defer_loading": True}
    [shown] = template_tools({"tools": [strict]}) or []
    assert (shown["function"]["strict"], shown["function"]["defer_loading"], shown["defer_loading"]) == (True, True, True)


@pytest.mark.parametrize(
    ("choice", "names"),
    [(None, ["a", "b"]), ("auto", ["a", "b"]), ("none", None), ({"type": "function", "function": {"name": "b"}}, ["b"])],
)
def test_a_choice_decides_which_tools_are_shown(choice: Any, names: list[str] | None) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    shown = template_tools({"tools": tools, "tool_choice": choice})
    assert (None if shown is None else [tool["function"]["name"] for tool in shown]) == names


def test_messages_lose_what_the_engine_does_not_know() -> None:
    message = {"role": "Assistant", "content": None, "refusal": None, "annotations": [], "reasoning_content": "r", "name": "n"}
    assert template_messages([message], "string") == [
        {"role": "assistant", "content": "", "name": "n", "reasoning_content": "r"}
    ]
    assert template_messages([{"role": "user", "content": "x", "name": "n"}], "string") == [{"role": "user", "content": "x"}]


def test_parts_are_joined_for_templates_that_want_a_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "b"}]
    assert template_messages([{"role": "user", "content": parts}], "string")[0]["content"] == "a b"
    assert template_messages([{"role": "user", "content": parts}], "openai")[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image"},
        {"type": "text", "text": "b"},
    ]
    assert template_messages([{"role": "tool", "content": parts[:1] + parts[2:]}], "openai")[0]["content"] == "a b"


def test_arguments_reach_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    [message] = template_messages([{"role": "assistant", "content": None, "tool_calls": [call]}], "string")
    assert message["tool_calls"] == [
        {"id": "1", "index": None, "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}
    ]


@pytest.mark.parametrize("arguments", ["{bad", "[1]", ""])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(ValueError, match=r"function\.arguments must be"):
        template_messages([{"role": "assistant", "tool_calls": [call]}], "string")


def test_a_last_assistant_message_counts_as_the_users_or_is_continued() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so"}]
    assert render_chat(TINY, {"messages": messages}).endswith("<|im_start|>user\nso<|im_end|>\n<|im_start|>assistant\n")
    continued = render_chat(TINY, {"messages": messages, "continue_final_message": True})
    assert continued.endswith("q<|im_end|>\n<|im_start|>assistant\nso")


def test_effort_switches_thinking() -> None:
    assert template_variables({"reasoning_effort": "none"})["enable_thinking"] is False
    assert template_variables({"reasoning": {"effort": "high"}, "chat_template_kwargs": {"thinking": False}}) == {
        "thinking": False,
        "enable_thinking": True,
        "reasoning_effort": "high",
    }
    assert template_variables({}) == {}


def test_templates_that_want_bare_functions_get_them() -> None:
    refusing = PromptTemplate(
        "{% for t in tools %}{% if t.function %}{{ raise_exception('no') }}{% endif %}{{ t.name }}{% endfor %}"
    )
    body = {"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert render_chat(refusing, body) == "f"


def test_responses_items_become_one_assistant_turn() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a"}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "out"}]},
    ]
    chat = responses_as_chat({"model": "m", "input": items, "instructions": "sys"}, TINY)
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["system", "system", "user", "assistant", "tool"]
    assert chat["messages"][1]["content"] == [{"type": "text", "text": "Developer instructions:\nbe brief"}]
    turn = chat["messages"][3]
    assert (turn["reasoning_content"], turn["tool_calls"][0]["function"]["arguments"]) == ("hm", '{"x": 1}')
    assert chat["messages"][4] == {"role": "tool", "tool_call_id": "c", "content": "out"}


def test_system_messages_lead_where_the_template_knows_no_others() -> None:
    items = [{"role": "user", "content": "q"}, {"role": "system", "content": "late"}]
    chat = responses_as_chat({"input": items, "instructions": "sys"}, LEADING)
    assert chat["messages"] == [{"role": "system", "content": "sys\n\nlate"}, {"role": "user", "content": "q"}]


def test_cut_off_arguments_of_the_past_count_as_none() -> None:
    for raw in ('{"x"', "[]", None, 4):
        chat = responses_as_chat({"input": [{"type": "function_call", "name": "f", "arguments": raw}]}, TINY)
        assert chat["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_unknown_items_are_refused() -> None:
    with pytest.raises(ValueError, match="web_search_call"):
        responses_as_chat({"input": [{"type": "web_search_call"}]}, TINY)


def test_only_callable_response_tools_are_shown() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {}},
        {"type": "custom", "name": "c", "description": "d", "format": {"type": "grammar", "definition": "g"}},
        {"type": "namespace", "name": "n"},
        {"type": "web_search"},
    ]
    shown = chat_tools(tools)
    assert [tool["function"]["name"] for tool in shown] == ["f", "c"]
    assert shown[1]["function"]["description"] == "d\n\nThe payload must conform to this lark grammar:\ng"
    assert effective_tool_choice({"type": "web_search"}) == "auto"
    assert effective_tool_choice({"type": "custom", "name": "c"}) == {"type": "custom", "name": "c"}


def test_anthropic_blocks_become_messages_in_their_order() -> None:
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "before"},
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "out"}]},
                    {"type": "text", "text": "after"},
                ],
            },
        ],
    }
    chat = messages_as_chat(body, TINY)
    shown = [(message["role"], message.get("content")) for message in chat["messages"]]
    assert shown == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", None),
        ("user", "before"),
        ("tool", "out"),
        ("user", "after"),
    ]
    assert chat["messages"][2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_anthropic_tools_and_choices() -> None:
    tools = [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": tools}
    chat = messages_as_chat({**body, "tool_choice": {"type": "any"}}, TINY)
    assert chat["tool_choice"] == "required"
    assert [tool["function"] for tool in chat["tools"]] == [
        {"name": "f", "description": "", "parameters": {"type": "object"}, "strict": False}
    ]
    with pytest.raises(ValueError, match="not in the forwarded tools"):
        messages_as_chat({**body, "tool_choice": {"type": "tool", "name": "bash"}}, TINY)
    with pytest.raises(ValueError, match="requires at least one custom tool"):
        messages_as_chat({**body, "tools": tools[1:], "tool_choice": {"type": "any"}}, TINY)


def test_inline_anthropic_system_messages_follow_the_template() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "system", "content": " late "}]
    assert [m["role"] for m in messages_as_chat({"messages": messages}, TINY)["messages"]] == ["user", "system"]
    assert messages_as_chat({"messages": messages}, LEADING)["messages"][0] == {"role": "system", "content": "late"}
