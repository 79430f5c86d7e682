"""vLLM's shape of a chat, rule by rule; the whole is held against the engine's own code in tests/engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_adapters.prompt.profile import PromptProfile
from engine_adapters.prompt.rendering import render
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from engine_adapters.prompt.vllm_chat import VllmProfile, system_first, template_message, template_tool
from engine_adapters.prompt.vllm_content_format import content_format_of

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
MODEL_DIR = Path(__file__).parents[3] / "configs" / "models" / "tiny-agent"
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
SHOW = "{% macro show(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(ARG) }}{% endfor %}"


def template(name: str) -> PromptTemplate:
    return PromptTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


def text(profile: PromptProfile, made: PromptTemplate, **body: Any) -> str:
    return render(made, profile, {"messages": [{"role": "user", "content": "hi"}], **body}).text


def test_one_tool_is_nine_tokens_less_than_in_sglang(hf: Tokenizer) -> None:
    made = PromptTemplate.from_folder(MODEL_DIR)
    vllm, sglang = (text(profile, made, tools=[TOOL]) for profile in (VllmProfile(), SglangProfile()))
    assert '"defer_loading": null' in sglang
    assert "defer_loading" not in vllm
    assert len(hf.encode(sglang)) - len(hf.encode(vllm)) == 9


def test_tools_are_dumped_with_nulls_in_the_models_order() -> None:
    sent = {"function": {"strict": True, "parameters": {}, "name": "f", "unknown": 1}, "defer_loading": True}
    function = {"name": "f", "description": None, "parameters": {}, "strict": True, "defer_loading": True}
    shaped = template_tool(sent)
    assert shaped == {"type": "function", "function": function, "defer_loading": True}
    assert list(shaped["function"]) == ["name", "description", "parameters", "strict", "defer_loading"]


@pytest.mark.parametrize(
    ("content", "as_text", "as_parts"),
    [
        ("a", "a", [{"type": "text", "text": "a"}]),
        (None, "", []),
        (
            [{"type": "text", "text": "a", "extra": 1}, {"type": "text", "text": ""}, "b"],
            "a\nb",
            [{"type": "text", "text": "a", "extra": 1}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}],
        ),
        ([{"type": "text", "text": None}, {"type": "refusal", "refusal": "no"}], "no", [{"type": "text", "text": "no"}]),
    ],
)
def test_content_becomes_lines_or_parts(content: Any, as_text: str, as_parts: list[Any]) -> None:
    message = {"role": "user", "content": content}
    assert template_message(message, "string")["content"] == as_text
    assert template_message(message, "openai")["content"] == as_parts


def test_media_have_no_derivable_prompt() -> None:
    with pytest.raises(ValueError, match="image_url"):
        template_message({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "openai")


def test_a_tools_parts_become_lines_in_either_form() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "tool", "tool_call_id": "c", "content": parts}
    assert template_message(message, "openai") == {"role": "tool", "content": "a\nb", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("sent", "given"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("{", {}), ("[1]", {}), ({"a": 1}, {"a": 1}), ('{"n": 1e2}', {"n": 100.0})],
)
def test_arguments_are_always_an_object(sent: Any, given: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "index": 3, "function": {"name": "f", "arguments": sent}}
    (shaped,) = template_message({"role": "assistant", "content": "", "tool_calls": [call]}, "string")["tool_calls"]
    assert shaped == {"id": "c", "function": {"arguments": given, "name": "f"}, "type": "function", "index": 3}


def test_reasoning_comes_under_both_names_but_not_at_the_tokenize_endpoint() -> None:
    message = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    shaped = VllmProfile().message(message, "string")
    assert (shaped["reasoning"], shaped["reasoning_content"]) == ("r", "r")
    assert "reasoning" not in VllmProfile(tokenize_endpoint=True).message(message, "string")


def test_claudes_billing_line_is_left_out_of_the_system_prompt() -> None:
    line = "x-anthropic-billing-header: cch=1"
    parts = [{"type": "text", "text": line}, {"type": "text", "text": f"{line}\nrules"}]
    assert template_message({"role": "system", "content": parts}, "string")["content"] == "rules"
    assert template_message({"role": "user", "content": line}, "string")["content"] == line


def test_a_developer_becomes_the_one_system_message_where_the_template_knows_none() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "d"},
    ]
    unknowing = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    knowing = unknowing + "{# 'developer' #}"
    assert text(VllmProfile(), PromptTemplate(unknowing), messages=messages) == "[system:s\n\nd][user:hi]"
    assert text(VllmProfile(), PromptTemplate(knowing), messages=messages) == "[system:s][user:hi][developer:d]"


def test_system_messages_are_only_moved_when_they_must() -> None:
    alone = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert system_first(alone) == alone
    parts = [
        {"role": "user", "content": "u"},
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert system_first(parts) == [{"role": "system", "content": "a\nb"}, {"role": "user", "content": "u"}]


def test_the_last_message_is_continued_within_the_text() -> None:
    made = template("chatml")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I think  "}]
    going_on = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    assert text(VllmProfile(), made, **going_on).endswith("<|im_start|>assistant\nI think  ")
    for refused in (
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": True},
        {"tools": []},
    ):
        with pytest.raises(ValueError):
            text(VllmProfile(), made, **refused)


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        ({}, '[true, "-", "-", "-", "-", null]'),
        ({"reasoning_effort": "high"}, '[true, true, "-", "high", "-", null]'),
        ({"reasoning_effort": "none"}, '[true, false, "-", "none", "-", null]'),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": None, "unknown": [1]}, "reasoning_effort": "low"},
            '[true, false, "-", "low", [1], null]',
        ),
        ({"add_generation_prompt": False, "documents": [{"title": "t"}]}, '[false, "-", "-", "-", "-", [{"title": "t"}]]'),
    ],
)
def test_variables(body: dict[str, Any], printed: str) -> None:
    assert text(VllmProfile(), template("inputs_string"), **body).splitlines()[-1] == printed


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% set all = messages[1:] %}{% for x in all %}{% for c in x.content %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        (SHOW.replace("ARG", "m.content"), "openai"),
        (SHOW.replace("ARG", "c=m.content"), "openai"),
        ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}", "openai"),
        ("an image {% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for a, b in messages %}{{ a }}{% endfor %}", "string"),
        ("{% for m in", "string"),
    ],
)
def test_content_format(source: str, form: str) -> None:
    assert content_format_of(source) == form
