"""Messages and Responses bodies read on from state to state are what they are when converted whole, whatever changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_bodies import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.base import EngineKind
from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.engine_prompts import EnginePrompts, profile_of
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.state import PromptState
from engine_adapters.prompt.template import PromptTemplate
from kvtier.hashing.sglang import Chain

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
STYLES = ("chatml", "qwen3", "kimi_k2", "llama3")
KINDS = (EngineKind.SGLANG, EngineKind.VLLM)
PATH, RESPONSES = "/v1/messages", "/v1/responses"
Json = dict[str, Any]

TEXTS = st.sampled_from(["hello", "", "a\nb\n", "中文", "<|im_end|>", "<think>x</think>", "word " * 40])
TOOLS = [{"name": "run", "description": "runs", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cch="}


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


USERS = TEXTS.map(lambda text: {"role": "user", "content": text}) | st.lists(TEXTS, max_size=3).map(
    lambda texts: {"role": "user", "content": [text_block(text) for text in texts]}
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Json]:
    answer = [text_block(draw(TEXTS))]
    if draw(st.booleans()):
        answer.insert(0, {"type": "thinking", "thinking": draw(TEXTS), "signature": "s"})
    found = [draw(USERS)]
    for step in range(draw(st.integers(0, 2))):
        call = {"type": "tool_use", "id": f"t{step}", "name": "run", "input": {"a": draw(TEXTS)}}
        content = draw(TEXTS | st.lists(TEXTS.map(text_block), max_size=2))
        result = {"type": "tool_result", "tool_use_id": f"t{step}", "content": content}
        found += [{"role": "assistant", "content": [*answer, call]}]
        found += [{"role": "user", "content": [result, *([text_block(draw(TEXTS))] if draw(st.booleans()) else [])]}]
    if draw(st.integers(0, 5)) == 0:
        found.append({"role": "system", "content": draw(TEXTS)})
    return [*found, {"role": "assistant", "content": draw(TEXTS) or "ok"}]


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    talk = [message for part in draw(st.lists(exchanges(), min_size=1, max_size=4)) for message in part]
    system = draw(st.sampled_from([None, "rules", "billing", [text_block("a"), text_block("b")]]))
    bodies: list[Json] = []
    for end in sorted(draw(st.sets(st.integers(1, len(talk)), min_size=1, max_size=4))):
        said = [{**BILLING, "text": f"{BILLING['text']}{end}"}, text_block("rules")] if system == "billing" else system
        body: Json = {"model": "m", "max_tokens": 9, "messages": talk[:end], **({"system": said} if said else {})}
        body |= draw(st.sampled_from([{}, {"tools": TOOLS}, {"thinking": {"type": "disabled"}}]))
        change = draw(st.sampled_from(["none", "none", "edit", "system", "order"]))
        if change == "edit":
            place = draw(st.integers(0, end - 1))
            bodies.append({**body, "messages": [*talk[:place], {"role": "user", "content": "edited"}]})
        elif change == "system":
            bodies.append({**body, "system": "other rules"})
        elif change == "order":  # members in another order: the system prompt behind the messages
            bodies.append(dict(reversed(body.items())))
        bodies.append(body)
    return bodies


@st.composite
def item_runs(draw: st.DrawFn) -> list[Json]:
    """One exchange as Responses items, in whatever order an assistant says them."""
    found: list[Json] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": draw(TEXTS)}]}]
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["reasoning", "empty", "text", "call", "custom", "output", "developer"]))
        call = {"call_id": "c", "name": "run"}
        found.append(
            {
                "reasoning": {"type": "reasoning", "summary": [{"type": "summary_text", "text": draw(TEXTS)}]},
                "empty": {"type": "reasoning", "summary": []},
                "text": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": draw(TEXTS)}]},
                "call": {"type": "function_call", **call, "arguments": json.dumps({"a": draw(TEXTS)})},
                "custom": {"type": "custom_tool_call", **call, "input": draw(TEXTS)},
                "output": {"type": "function_call_output", "call_id": "c", "output": draw(TEXTS)},
                "developer": {"type": "message", "role": "developer", "content": draw(TEXTS) or "x"},
            }[kind]
        )
    return found


@st.composite
def item_histories(draw: st.DrawFn) -> list[Json]:
    items = [item for run in draw(st.lists(item_runs(), min_size=1, max_size=4)) for item in run]
    bodies: list[Json] = []
    for end in sorted(draw(st.sets(st.integers(1, len(items)), min_size=1, max_size=5))):
        body: Json = {"model": "m", "input": items[:end], **draw(st.sampled_from([{}, {"instructions": "rules"}]))}
        if draw(st.integers(0, 3)) == 0:
            place = draw(st.integers(0, end - 1))
            bodies.append({**body, "input": [*items[:place], {"role": "user", "content": "edited"}]})
        bodies.append(body)
    return bodies


def check(
    prompts: EnginePrompts, state: PromptState | None, body: Json, *, keep_ids: bool = True, path: str = PATH
) -> PromptState | None:
    """Read on and converted whole give the same ids and blocks, or refuse alike."""
    sent, model, form = json.dumps(body).encode(), prompts.model, prompts.form(path)
    assert form is not None
    try:
        ids = model.encode(model.render(model.parse(prompts.chat(path, sent))))
    except ValueError:
        with pytest.raises(ValueError):
            model.extend(state, sent, Chain(16), keep_ids=keep_ids, form=form)
        return state
    found = model.extend(state, sent, Chain(16), keep_ids=keep_ids, form=form)
    assert found.tokens == len(ids)
    assert found.exact_ids == (ids if keep_ids else None) or not ids
    assert found.block_ids == Chain(16).ids(Chain(16).extend_digests(ids)[1])
    return found


def prompts_of(kind: EngineKind, source: str, tokenizer: PromptTokenizer) -> EnginePrompts:
    return EnginePrompts(kind, PromptModel(PromptTemplate(source, {"bos_token": "<s>"}), tokenizer, profile_of(kind), seed=1))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(style=st.sampled_from(STYLES), kind=st.sampled_from(KINDS), history=histories(), keep_ids=st.booleans())
def test_reading_on_is_converting_whole(
    style: str, kind: EngineKind, history: list[Json], keep_ids: bool, hf: PromptTokenizer
) -> None:
    prompts = prompts_of(kind, (TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8"), hf)
    state: PromptState | None = None
    for body in history:
        state = check(prompts, state, body, keep_ids=keep_ids)
    assert (prompts.model.counts.desyncs, prompts.model.counts.loop_faults) == (0, 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(style=st.sampled_from(STYLES), kind=st.sampled_from(KINDS), history=item_histories(), keep_ids=st.booleans())
def test_reading_items_on_is_converting_whole(
    style: str, kind: EngineKind, history: list[Json], keep_ids: bool, hf: PromptTokenizer
) -> None:
    prompts = prompts_of(kind, (TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8"), hf)
    state: PromptState | None = None
    for body in history:
        state = check(prompts, state, body, keep_ids=keep_ids, path=RESPONSES)
    assert (prompts.model.counts.desyncs, prompts.model.counts.loop_faults) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "turns"), [(PATH, 38), (RESPONSES, 49)])
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_agents_are_read_on(kind: EngineKind, path: str, turns: int, hf: PromptTokenizer) -> None:
    prompts = prompts_of(kind, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"), hf)
    seen = 0
    for bodies in recorded(path):
        state: PromptState | None = None
        for body in bodies:
            state = check(prompts, state, body, path=path)
            seen += 1
    assert seen == turns
    assert prompts.model.counts.resumed > turns / 3


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_new_is_converted(kind: EngineKind, hf: PromptTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = prompts_of(kind, (TEMPLATES / "kimi_k2.jinja").read_text(encoding="utf-8"), hf)
    form = prompts.form(PATH)
    assert form is not None
    converted: list[Json] = []
    plain = type(form).converted

    def counted(self: object, piece: list[Json]) -> list[Json]:
        converted.extend(piece)
        return plain(self, piece)  # type: ignore[arg-type]

    monkeypatch.setattr(type(form), "converted", counted)
    talk: list[Json] = [{"role": "user", "content": "begin"}]
    state: PromptState | None = None
    for step in range(40):
        body = json.dumps({"system": "rules", "messages": talk, "tools": TOOLS}).encode()
        converted.clear()
        state = prompts.model.extend(state, body, Chain(16), form=form)
        if step > 1:
            assert len(converted) <= 6
        call = {"type": "tool_use", "id": f"t{step}", "name": "run", "input": {"a": "ls"}}
        talk = [*talk, {"role": "assistant", "content": [call]}]
        result = {"type": "tool_result", "tool_use_id": f"t{step}", "content": f"file {step}\n" * 50}
        talk = [*talk, {"role": "user", "content": [result]}]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"messages":[]}', b'{"messages":[{"content":"x"}]}', b'{"messages":[1]}', b"[]", b"x"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_body_is_refused(kind: EngineKind, body: bytes, hf: PromptTokenizer) -> None:
    prompts = prompts_of(kind, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"), hf)
    with pytest.raises(ValueError):
        prompts.model.extend(None, body, Chain(16), form=prompts.form(PATH))
