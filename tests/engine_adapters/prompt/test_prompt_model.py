"""A model joined from its folder, and the checks that keep a wrong prompt from staying."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

from engine_adapters.prompt.loop_run import LoopTemplate
from engine_adapters.prompt.loop_watch import LoopRun
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile, template_message, template_variables
from engine_adapters.prompt.sglang_schema import normalized_types
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from engine_adapters.prompt.verify import verify
from engine_adapters.prompt.vllm_chat import VllmProfile
from kvtier.hashing.sglang import Chain

MODEL_DIR = Path(__file__).parents[3] / "configs" / "models" / "tiny-agent"
CHAT: list[dict[str, Any]] = [{"role": "user", "content": f"question {number} " * 40} for number in range(6)]
TOOL = {"type": "function", "function": {"parameters": {"type": "object", "a": {"d": 1, "c": 2}}, "name": "f"}}


def body(messages: list[dict[str, Any]] = CHAT, **members: Any) -> bytes:
    return json.dumps({"messages": messages, **members}).encode()


def test_a_folder_is_opened_for_either_engine() -> None:
    for profile in (SglangProfile(), VllmProfile()):
        model = PromptModel.open(MODEL_DIR, profile)
        assert model.loop_wise
        state = model.extend(None, body(tools=[TOOL]), Chain(16))
        assert verify(state, model, body(tools=[TOOL])).right


def test_fastokens_gives_the_same_states() -> None:
    slow, fast = (PromptModel.open(MODEL_DIR, SglangProfile(), fast=fast) for fast in (False, True))
    first, second = (model.extend(None, body(), Chain(16)) for model in (slow, fast))
    assert first.exact_ids == second.exact_ids
    assert list(first.cuts)[::5] == list(second.cuts)[::5]


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja"])
def test_what_a_folder_lacks_is_named(missing: str, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if name != missing:
            shutil.copy(MODEL_DIR / name, tmp_path / name)
    with pytest.raises(ValueError, match=rf"{tmp_path}.*{missing}"):
        PromptModel.open(tmp_path, SglangProfile())


@pytest.mark.parametrize(("code", "sorts"), [("tools = deep_sort_dict(tools)", True), ("", False)])
def test_kimis_code_in_the_folder_tells_whether_tools_are_sorted(code: str, sorts: bool, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_DIR / name, tmp_path / name)
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}")
    (tmp_path / "tokenization_kimi.py").write_text(code)
    model = PromptModel.open(tmp_path, SglangProfile())
    text = model.render(model.parse(body(tools=[TOOL]))).text
    assert (text.index('"c"') < text.index('"d"')) is sorts
    assert verify(model.extend(None, body(tools=[TOOL]), Chain(16)), model, body(tools=[TOOL])).right
    (tmp_path / "tokenization_kimi.py").write_text("encode_tools_to_typescript_style")
    with pytest.raises(ValueError, match="TypeScript"):
        PromptModel.open(tmp_path, SglangProfile())


@pytest.mark.parametrize("keep_ids", [True, False])
def test_verification_tells_where_a_state_is_wrong(hf: Tokenizer, keep_ids: bool) -> None:
    model = PromptModel(PromptTemplate.from_folder(MODEL_DIR), hf, SglangProfile(), seed=1)
    state = model.extend(None, body(), Chain(16), keep_ids=keep_ids)
    verdict = verify(state, model, body())
    assert (verdict.right, verdict.tokens, verdict.known) == (True, state.tokens, state.tokens)
    if keep_ids:
        state.ids.chunks[0].rows[37] ^= 1
        assert verify(state, model, body()).differs_at == 37
    else:
        state.blocks.chunks[0].rows[3] ^= 1
        assert verify(state, model, body()).differs_at == 3 * 16
    shorter = model.extend(None, body(CHAT[:-1]), Chain(16), keep_ids=keep_ids)
    assert not verify(shorter, model, body()).right


def test_a_rewritten_template_that_disagrees_is_dropped_at_its_first_use(
    hf: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = LoopTemplate.run

    def wrong(self: LoopTemplate, *args: Any, **kwargs: Any) -> LoopRun:
        run = right(self, *args, **kwargs)
        return LoopRun(run.text + "x", run.first, run.chars, run.reaches, run.trace)

    monkeypatch.setattr(LoopTemplate, "run", wrong)
    model = PromptModel(PromptTemplate.from_folder(MODEL_DIR), hf, SglangProfile(), seed=1)
    state = model.extend(None, body(), Chain(16))
    assert verify(state, model, body()).right
    assert (model.counts.loop_faults, model.loop_wise) == (1, False)
    longer = [*CHAT, {"role": "user", "content": "more"}]
    assert verify(model.extend(state, body(longer), Chain(16)), model, body(longer)).right


def test_a_template_that_cannot_be_resumed_still_spares_the_tokenizer(hf: Tokenizer) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{{ '' if loop.length else '' }}{% endfor %}"
    model = PromptModel(PromptTemplate(source), hf, SglangProfile(), seed=1)
    state = model.extend(None, body(), Chain(16))
    seen: list[int] = []
    resume = hf.resume
    model.tokenizer = type(
        "Counting",
        (),
        {"resume": lambda self, text, at=0, carry=0: seen.append(len(text)) or resume(text, at, carry), "holds": hf.holds},
    )()  # type: ignore[assignment]
    longer = [*CHAT, {"role": "user", "content": "more"}]
    found = model.extend(state, body(longer), Chain(16))
    assert found.exact_ids is not None
    assert found.exact_ids == array("I", hf.encode(model.render(model.parse(body(longer))).text))
    assert sum(seen) < 2000
    assert model.counts.resumed == 0


def test_type_names_of_other_worlds_become_json_schemas() -> None:
    schema = {
        "type": "dict",
        "properties": {"a": {"type": "varchar(25)"}, "b": {"type": ["int32", "integer", "null"]}, "c": {"type": "list_price"}},
        "items": {"anyOf": [{"type": "uuid"}, {"type": "float64"}]},
        "enum": [{"type": "str"}],
    }
    assert normalized_types(schema) == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"type": "list_price"}},
        "items": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "enum": [{"type": "str"}],
    }
    assert schema["type"] == "dict"


def test_numbers_beyond_64_bits_become_floats_as_the_engine_reads_them() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [18446744073709551616, 1], "b": 2}'}}
    (shaped,) = template_message({"role": "assistant", "content": "", "tool_calls": [call]}, "string")["tool_calls"]
    assert shaped["function"]["arguments"] == {"a": [1.8446744073709552e19, 1], "b": 2}
    assert isinstance(shaped["function"]["arguments"]["a"][0], float)


@pytest.mark.parametrize(
    ("sent", "given"),
    [
        ({}, {}),
        ({"reasoning": {"enabled": "yes"}}, {"thinking": True, "enable_thinking": True}),
        ({"reasoning": {"effort": "0.5"}}, {"thinking": True, "enable_thinking": True, "reasoning_effort": 0.5}),
        ({"reasoning_effort": "none"}, {"thinking": False, "enable_thinking": False, "reasoning_effort": "none"}),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max", "thinking": False}},
         {"thinking": False, "enable_thinking": True, "reasoning_effort": "max"}),
    ],
)  # fmt: skip
def test_sglangs_variables(sent: dict[str, Any], given: dict[str, Any]) -> None:
    assert template_variables(sent) == given


@pytest.mark.parametrize("sent", [{"chat_template_kwargs": {"chat_template": "x"}}, {"reasoning": {"effort": "much"}}])
def test_what_sglang_refuses_is_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        template_variables(sent)
