"""What one more turn costs in each protocol; bodies of Messages and Responses are read as chats."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import msgspec

from bench.deltatok.talk import Message, Talk, library_text
from engine_adapters.base import EngineKind
from engine_adapters.prompt.engine_prompts import CHAT_PATH, EnginePrompts
from engine_adapters.prompt.model import PromptModel
from kvtier.hashing.sglang import Chain

MESSAGES_PATH, RESPONSES_PATH = "/v1/messages", "/v1/responses"
_PAGE_TOKENS = 64
_TURN_CHARS = 2_400


class DialectRow(msgspec.Struct, frozen=True):
    """`delta_cpu_ms`: median of one turn, from the body's bytes to its block ids."""

    path: str
    context_tokens: int
    delta_cpu_ms: float


def measure_dialects(model: PromptModel, context_chars: int, turns: int) -> list[DialectRow]:
    return [_measure(model, path, context_chars, turns) for path in (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH)]


def _measure(model: PromptModel, path: str, context_chars: int, turns: int) -> DialectRow:
    prompts, root = EnginePrompts(EngineKind.SGLANG, model), Chain(_PAGE_TOKENS)
    talk = Talk(library_text(2 * context_chars))
    while talk.chars < context_chars:
        talk.grow(_TURN_CHARS)
    form = prompts.form(path)
    state = model.extend(None, body_of(talk, path, []), root, form=form)
    costs: list[float] = []
    for number in range(turns):
        body = body_of(talk, path, talk.turn(f"output {number}\n" * 150))
        begun = time.process_time()
        model.extend(state, body, root, form=form)
        costs.append((time.process_time() - begun) * 1000)
    return DialectRow(path, state.tokens, statistics.median(costs))


def body_of(talk: Talk, path: str, further: list[Message]) -> bytes:
    """The conversation, with further messages at its end, as this protocol's clients send it."""
    messages = [*talk.messages, *further]
    if path == CHAT_PATH:
        return talk.body(*further)
    if path == MESSAGES_PATH:
        tools = [_anthropic_tool(tool["function"]) for tool in talk.tools]
        sent: Message = {"system": messages[0]["content"], "messages": [_anthropic(message) for message in messages[1:]]}
        return json.dumps({"model": "m", "max_tokens": 1, "tools": tools, **sent}).encode()
    items = [item for message in messages[1:] for item in _items(message)]
    tools = [{"type": "function", **tool["function"]} for tool in talk.tools]
    return json.dumps({"model": "m", "instructions": messages[0]["content"], "input": items, "tools": tools}).encode()


def _anthropic_tool(function: Message) -> Message:
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


def _anthropic(message: Message) -> Message:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    if message["role"] == "user":
        return message
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": [{"type": "text", "text": message["content"]}, *calls]}


def _items(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    calls = [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
    return [{"type": "message", "role": message["role"], "content": message["content"]}, *calls]
