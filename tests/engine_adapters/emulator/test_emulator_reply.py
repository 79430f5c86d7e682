from __future__ import annotations

import json
from typing import Any

import pytest

from engine_adapters.emulator.reply.plan import SUBMIT_MARK, ReplyRequest, ReplyStyle, plan_reply
from engine_adapters.emulator.reply.schema import synthesise
from engine_adapters.emulator.reply.tools import OfferedTool, ToolKind, call, choose
from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER
from engine_adapters.prompt.tokenizer import Tokenizer

STYLE = ReplyStyle(tool_rounds=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL_FOLDER)


def function(name: str, **properties: Any) -> OfferedTool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return OfferedTool(name, ToolKind.FUNCTION, schema)


def wish(**options: Any) -> ReplyRequest:
    return ReplyRequest(**{"prompt_key": 7, "max_tokens": 200, **options})


BASH = function("bash", command={"type": "string"})


@pytest.mark.parametrize(
    ("schema", "name", "value"),
    [
        ({"type": "string"}, "command", "ls -la"),
        ({"type": "array", "items": {"type": "string"}}, "command", ["bash", "-lc", "ls -la"]),
        ({"type": "string"}, "file_path", "README.md"),
        ({"type": "string"}, "workdir", "."),
        ({"enum": ["b", "a"]}, "x", "b"),
        ({"const": 4}, "x", 4),
        ({"type": "integer", "minimum": 5}, "timeout", 5),
        ({"type": "integer", "maximum": 0}, "x", 0),
        ({"type": "boolean"}, "is_background", False),
        ({"type": ["null", "string"], "minLength": 3}, "x", "xxx"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "x", False),
        ({"type": "string", "default": "here"}, "x", "here"),
        ({"type": "array", "items": {"type": "string"}}, "commands", ["ls -la"]),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, "", {"a": 1}),
    ],
)
def test_values_satisfy_their_schema(schema: dict[str, Any], name: str, value: Any) -> None:
    assert synthesise(schema, name) == value


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema: dict[str, Any] = {"type": "object", "required": ["child"]}
    schema["properties"] = {"child": schema}
    assert isinstance(synthesise(schema), dict)


def test_a_shell_is_preferred_then_a_reader_then_the_first() -> None:
    others = [function("agent"), function("write")]
    assert choose([*others, function("read_file"), BASH]) == BASH
    assert choose([*others, function("Read")]) == function("Read")
    assert choose(others) == others[0]
    assert choose([]) is None
    assert choose([*others, BASH], "write") == function("write")


def test_calls_carry_json_arguments() -> None:
    assert json.loads(call(BASH).arguments) == {"command": "ls -la"}
    assert json.loads(call(OfferedTool("apply_patch", ToolKind.CUSTOM)).arguments) == {"input": "ls -la"}
    argv = function("shell", command={"type": "array", "items": {"type": "string"}})
    assert json.loads(call(argv, "echo hi").arguments) == {"command": ["bash", "-lc", "echo hi"]}


def test_equal_prompts_get_equal_replies_and_others_do_not(tokenizer: Tokenizer) -> None:
    assert plan_reply(wish(), STYLE, tokenizer) == plan_reply(wish(), STYLE, tokenizer)
    texts = {plan_reply(wish(prompt_key=key), STYLE, tokenizer).text for key in range(20)}
    assert len(texts) == 20
    assert plan_reply(wish(choice=1), STYLE, tokenizer).text != plan_reply(wish(), STYLE, tokenizer).text


@pytest.mark.parametrize("limit", [1, 2, 5, 500])
def test_the_limit_is_kept_and_pieces_make_the_text(tokenizer: Tokenizer, limit: int) -> None:
    plan = plan_reply(wish(max_tokens=limit), STYLE, tokenizer)
    assert len(plan.token_ids) == len(plan.pieces) <= limit
    spoken = plan.token_ids[:-1] if plan.ends else plan.token_ids
    assert tokenizer.decode(spoken) == plan.text
    assert plan.ends == (plan.token_ids[-1] == tokenizer.eos_token_id)


def test_ignored_eos_fills_the_limit(tokenizer: Tokenizer) -> None:
    plan = plan_reply(wish(max_tokens=300, ignore_eos=True), STYLE, tokenizer)
    assert len(plan.token_ids) == 300
    assert not plan.ends


def test_characters_split_over_tokens_appear_whole(tokenizer: Tokenizer) -> None:
    echo = OfferedTool("bash", ToolKind.FUNCTION, {"type": "object", "required": ["c"], "properties": {"c": {"const": "é→🎉"}}})
    plan = plan_reply(wish(tools=(echo,)), STYLE, tokenizer)
    assert "é→🎉" in plan.text
    assert "\ufffd" not in plan.text


def test_tools_are_called_until_enough_results_are_there(tokenizer: Tokenizer) -> None:
    calls = [plan_reply(wish(tools=(BASH,), tool_results=count), STYLE, tokenizer).calls for count in range(4)]
    assert [len(one) for one in calls] == [1, 1, 0, 0]
    assert len(plan_reply(wish(tools=(BASH,), tool_results=9, forced=True), STYLE, tokenizer).calls) == 1
    assert plan_reply(wish(tools=(BASH,), named="absent"), STYLE, tokenizer).calls == ()


def test_a_call_is_written_as_the_model_writes_it(tokenizer: Tokenizer) -> None:
    plan = plan_reply(wish(tools=(BASH,)), STYLE, tokenizer)
    assert plan.text == '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
    assert plan.text[: plan.name_end].endswith('"bash"')
    assert plan.text[plan.arguments_at :].startswith('{"command"')


def test_a_session_that_ends_by_a_command_gets_it(tokenizer: Tokenizer) -> None:
    plan = plan_reply(wish(tools=(BASH,), tool_results=2, submits=True), STYLE, tokenizer)
    assert json.loads(plan.calls[0].arguments) == {"command": f"echo {SUBMIT_MARK}"}


def test_a_wanted_schema_is_answered_in_json(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    assert json.loads(plan_reply(wish(json_schema=schema), STYLE, tokenizer).text) == {"title": "x"}
