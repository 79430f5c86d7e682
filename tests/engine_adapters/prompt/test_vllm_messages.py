"""Messages bodies as vLLM takes them: system prompts, tool results, thinking; held against the engine in test_prompt_truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_adapters.base import EngineInfo, EngineKind
from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.engine_prompts import EnginePrompts, ids_json
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.vllm_chat import VllmProfile
from engine_adapters.prompt.vllm_messages import messages_as_chat
from kvtier.hashing import vllm

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
ANY_ORDER = PromptTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
SYSTEM_FIRST = PromptTemplate(
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}


def chat(template: PromptTemplate = ANY_ORDER, **members: Any) -> dict[str, Any]:
    return messages_as_chat(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], **members}, template
    )


def test_the_system_prompt_is_joined_without_the_line_that_changes() -> None:
    system = [BILLING, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(system=system)["messages"][0] == {"role": "system", "content": "ab"}


def test_system_messages_stay_where_they_are_unless_the_template_wants_them_first() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}, {"role": "user", "content": "on"}]
    roles = [message["role"] for message in chat(messages=messages, system="s")["messages"]]
    assert roles == ["system", "user", "system", "user"]
    merged = chat(SYSTEM_FIRST, messages=messages, system="s")["messages"]
    assert [message["role"] for message in merged] == ["system", "user", "user"]
    assert merged[0]["content"] == "slate"


def test_tool_results_come_before_what_the_user_says_besides() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"type": "text", "text": "go on"},
    ]
    calls = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "t1", "name": "run", "input": {"a": "é"}},
    ]
    messages = [{"role": "assistant", "content": calls}, {"role": "user", "content": blocks}]
    said, result, user = chat(messages=messages)["messages"]
    assert (said["reasoning"], "content" in said) == ("hm", False)
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": "é"}
    assert result == {"role": "tool", "tool_call_id": "t1", "content": "x\ny"}
    assert user == {"role": "user", "content": "go on"}
    only_results = chat(messages=[{"role": "user", "content": blocks[:1]}])["messages"]
    assert [message["role"] for message in only_results] == ["tool"]


def test_thinking_is_switched_off_by_what_the_template_heeds() -> None:
    heeds = PromptTemplate("{{ messages[0].content }}{% if enable_thinking is false %}<no>{% endif %}")
    assert chat(heeds, thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert chat(ANY_ORDER, thinking={"type": "disabled"})["reasoning_effort"] == "low"
    assert chat(output_config={"effort": "high"})["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"messages": [{"role": "system", "content": [{"type": "tool_removal", "tool": {}}]}]},
    ],
)
def test_what_cannot_be_derived_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        chat(**members)


def test_an_engines_bodies_and_roots(hf: PromptTokenizer) -> None:
    model = PromptModel(ANY_ORDER, hf, VllmProfile(), seed=1)
    prompts = EnginePrompts(EngineKind.VLLM, model, hash_seed="0")
    assert (prompts.takes("/v1/messages"), prompts.takes("/v1/completions")) == (True, False)
    told = EngineInfo("vllm 0.32", ("m",), page_size=32, flags={"prefix_caching_hash_algo": "xxhash_cbor"})
    assert prompts.root(told, "s") == vllm.root(32, vllm.HashAlgorithm.XXHASH_CBOR, hash_seed="0", cache_salt="s")
    with pytest.raises(ValueError, match="md5"):
        prompts.root(EngineInfo("vllm", ("m",), page_size=32, flags={"prefix_caching_hash_algo": "md5"}), None)
    with pytest.raises(ValueError, match="page size"):
        prompts.root(EngineInfo("vllm", ("m",)), None)
    with pytest.raises(ValueError, match="form"):
        prompts.chat("/v1/messages", b'{"messages":[{"content":"x"}]}')
    body = b'{"messages":[{"role":"user","content":"\\"input_ids\\""}],"x":"input_ids"}'
    assert prompts.chat("/v1/chat/completions", body) == body
    ids = model.encode(model.render({"messages": [{"role": "user", "content": "word " * 40_000}]}))
    assert json.loads(ids_json(ids)) == ids.tolist()
