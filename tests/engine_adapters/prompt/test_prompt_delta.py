"""For any conversation, any way of splitting it into turns and any change to its history, the delta is the whole."""

from __future__ import annotations

import base64
import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.profile import PromptProfile
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.state import PromptState
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.vllm_chat import VllmProfile
from kvtier.hashing import vllm
from kvtier.hashing.chain import BlockChain
from kvtier.hashing.sglang import Chain, event_seed

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
STYLES = ("chatml", "qwen3", "kimi_k2", "llama3")
TOKENIZERS = ("hf", "kimi", "tekken")
PROFILES: tuple[PromptProfile, ...] = (SglangProfile(), VllmProfile())
ROOTS: tuple[BlockChain, ...] = (Chain(1), Chain(16), Chain(4, True, event_seed("tenant-a")), vllm.root(8, cache_salt="s"))
Json = dict[str, Any]

_BASE64 = base64.b64encode(random.Random(1).randbytes(3000)).decode()
PIECES = st.sampled_from(
    [
        "word", " and", "\n", "\n\n", "if x:\n    return 1\n", "é", "e\u0301", "中文字", "日本語", "한국어", "😀", "1234567",
        "👩\u200d👩\u200d👧", "<|im_end|>", "<|im_start|>user\n", "<|im_user|>", "<|im_middle|>", "<|eot_id|>", "<think>",
        "</think>\n\n", "[INST]", "</s>", "<tool_response>", "</tool_response>", "<|im_", "|>", "\x1c", "\u2028", "\ufeff",
        _BASE64, " " * 50, "a\n" * 30,
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)
CONTENTS = TEXTS | st.lists(TEXTS, min_size=1, max_size=2).map(lambda texts: [{"type": "text", "text": text} for text in texts])


@st.composite
def exchanges(draw: st.DrawFn) -> list[Json]:
    user = {"role": "user", "content": draw(CONTENTS)}
    answer: Json = {"role": "assistant", "content": draw(TEXTS)}
    if draw(st.booleans()):
        answer["reasoning_content"] = draw(TEXTS)
    if draw(st.booleans()):
        return [user, answer]
    found = [user]
    for step in range(draw(st.integers(1, 3))):
        calls = [
            {
                "id": f"functions.run:{step}",
                "type": "function",
                "function": {"name": "run", "arguments": json.dumps({"command": draw(TEXTS)})},
            }
        ]
        found.append({**answer, "content": draw(TEXTS), "tool_calls": calls})
        found.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": draw(CONTENTS)})
    return [*found, answer] if draw(st.booleans()) else found


TALKS = st.builds(
    lambda system, parts: [*system, *(message for part in parts for message in part)],
    st.lists(TEXTS.map(lambda text: {"role": "system", "content": text}), max_size=1),
    st.lists(exchanges(), min_size=1, max_size=4),
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "d" * 30, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("run", "read")
]


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    """The bodies that one thread sends: turns of a conversation, and now and then one with its history changed."""
    talk = draw(TALKS)
    tools = draw(st.sampled_from([None, TOOLS]))
    bodies: list[Json] = []
    for end in sorted(draw(st.sets(st.integers(1, len(talk)), min_size=1, max_size=4))):
        body: Json = {"model": "m", "messages": talk[:end], **({"tools": tools} if tools else {})}
        change = draw(
            st.sampled_from(["none", "none", "none", "edit", "drop", "compact", "tools", "respell", "retry", "effort"])
        )
        bodies += _changed(draw, body, change)
    return bodies


def _changed(draw: st.DrawFn, body: Json, change: str) -> list[Json]:
    messages = body["messages"]
    place = draw(st.integers(0, len(messages) - 1))
    if change == "edit" and messages[place]["role"] == "user":
        edited = [*messages[:place], {"role": "user", "content": draw(TEXTS)}, *messages[place + 1 :]]
        return [body, {**body, "messages": edited}, body]
    if change == "drop":
        return [body, {**body, "messages": messages[: place + 1]}, body]
    if change == "compact":
        return [body, {**body, "messages": [{"role": "user", "content": draw(TEXTS)}]}, body]
    if change == "tools" and "tools" in body:
        return [body, {**body, "tools": body["tools"][::-1]}, {**body, "tool_choice": "none"}]
    if change == "respell":  # a client that writes text as one part, and back
        return [body, {**body, "messages": [_respelled(message) for message in messages]}]
    if change == "effort":
        return [{**body, "chat_template_kwargs": {"enable_thinking": False}}, body]
    return [body, body] if change == "retry" else [body]


def _respelled(message: Json) -> Json:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]}
    return {**message, "content": content[0]["text"]} if len(content) == 1 else message


def model_of(style: str, tokenizer: PromptTokenizer, profile: PromptProfile) -> PromptModel:
    source = (TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8")
    return PromptModel(PromptTemplate(source, {"bos_token": "<s>"}), tokenizer, profile, seed=1)


def check(model: PromptModel, state: PromptState | None, body: Json, root: BlockChain, *, keep_ids: bool) -> PromptState | None:
    """The delta and the whole give the same ids and blocks, or refuse alike."""
    sent = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        ids = model.encode(model.render(body))
    except ValueError:
        with pytest.raises(ValueError):
            model.extend(state, sent, root, keep_ids=keep_ids)
        return state
    found = model.extend(state, sent, root, keep_ids=keep_ids)
    assert found.tokens == len(ids)
    assert found.exact_ids == (ids if keep_ids else None) or not ids
    assert found.block_ids == root.ids(root.extend_digests(ids)[1])
    return found


def replay(model: PromptModel, history: list[Json], root: BlockChain, *, keep_ids: bool) -> None:
    state: PromptState | None = None
    for body in history:
        state = check(model, state, body, root, keep_ids=keep_ids)
    assert (model.counts.desyncs, model.counts.loop_faults) == (0, 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    style=st.sampled_from(STYLES),
    tokenizer=st.sampled_from(TOKENIZERS),
    history=histories(),
    profile=st.sampled_from(PROFILES),
    keep_ids=st.booleans(),
)
def test_delta_is_the_whole(
    style: str,
    tokenizer: str,
    history: list[Json],
    profile: PromptProfile,
    keep_ids: bool,
    tokenizers_by_name: dict[str, PromptTokenizer],
) -> None:
    replay(model_of(style, tokenizers_by_name[tokenizer], profile), history, Chain(16), keep_ids=keep_ids)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None, max_examples=50)
@given(history=histories(), profile=st.sampled_from(PROFILES), root=st.sampled_from(ROOTS), keep_ids=st.booleans())
def test_delta_is_the_whole_for_every_pair(
    style: str,
    tokenizer: str,
    history: list[Json],
    profile: PromptProfile,
    root: BlockChain,
    keep_ids: bool,
    tokenizers_by_name: dict[str, PromptTokenizer],
) -> None:
    replay(model_of(style, tokenizers_by_name[tokenizer], profile), history, root, keep_ids=keep_ids)


@pytest.mark.parametrize("style", STYLES)
def test_turns_of_an_agent_are_resumed(style: str, kimi: PromptTokenizer) -> None:
    """The point of it all: a tool's turn is not rendered from the beginning, or but once where a system prompt stands apart."""
    model = model_of(style, kimi, SglangProfile())
    talk: list[Json] = [{"role": "system", "content": "rules " * 500}, {"role": "user", "content": "do it"}]
    state: PromptState | None = None
    for step in range(10):
        state = check(model, state, {"model": "m", "messages": talk, "tools": TOOLS}, Chain(16), keep_ids=True)
        call = {
            "id": f"functions.run:{step}",
            "type": "function",
            "function": {"name": "run", "arguments": '{"command": "ls"}'},
        }
        talk = [*talk, {"role": "assistant", "content": "", "tool_calls": [call]}]
        talk = [*talk, {"role": "tool", "tool_call_id": call["id"], "content": f"file {step}\n" * 100}]
    assert model.counts.whole <= 2
    assert model.counts.resumed == 10 - model.counts.whole


def test_lone_surrogates_are_refused_and_the_state_stays(hf: PromptTokenizer) -> None:
    model = model_of("chatml", hf, SglangProfile())
    good = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    state = check(model, None, good, Chain(16), keep_ids=True)
    for text in ("\ud800", "x\udfffy", "\udc00\ud800"):
        bad = {
            "model": "m",
            "messages": [*good["messages"], {"role": "assistant", "content": "b"}, {"role": "user", "content": text}],
        }
        assert check(model, state, bad, Chain(16), keep_ids=True) is state
        with pytest.raises(ValueError):
            model.extend(state, json.dumps(bad).encode(), Chain(16))


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_messages_of_five_megabytes(tokenizer: str, tokenizers_by_name: dict[str, PromptTokenizer]) -> None:
    model = model_of("kimi_k2", tokenizers_by_name[tokenizer], SglangProfile())
    rng = random.Random(7)
    lines = "".join(f"line {number}: {rng.random()} 中文\n" for number in range(120_000))[: 5 << 20]
    blob = base64.b64encode(rng.randbytes(600_000)).decode()
    talk: list[Json] = [{"role": "user", "content": "look"}]
    state: PromptState | None = None
    for huge in (lines, blob, " " * 200_000 + "end", "😀" * 50_000):
        for content in (huge, "go on"):
            talk = [*talk, {"role": "assistant", "content": "ok"}, {"role": "user", "content": content}]
            state = check(model, state, {"model": "m", "messages": talk}, Chain(64), keep_ids=True)
    assert state is not None
    assert state.tokens > 1_000_000
    assert model.counts.resumed == 7


def test_a_wrong_state_is_found_by_its_ids(hf: PromptTokenizer) -> None:
    """A poisoned state: what is encoded again differs, and the prompt is made anew."""
    model = model_of("chatml", hf, SglangProfile())
    talk: list[Json] = [{"role": "user", "content": "begin"}]
    for number in range(6):
        talk += [{"role": "assistant", "content": f"a{number}"}, {"role": "user", "content": f"question {number}"}]
    body = {"model": "m", "messages": talk}
    state = model.extend(None, json.dumps(body).encode(), Chain(4))
    for chunk in state.ids.chunks:
        chunk.rows[-12:] = array("I", [7] * 12)
    body["messages"] = [*talk, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    assert check(model, state, body, Chain(4), keep_ids=True) is not None
    assert model.counts.desyncs == 1
