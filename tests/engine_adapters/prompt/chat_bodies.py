"""Chat bodies for comparing prompts: every recorded one, agent sessions rebuilt, and random ones that try the corners."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from bench.replay.sessions import read_sessions

DATA = Path(__file__).parents[2] / "data"
MODEL = "tiny-agent"
Json = dict[str, Any]

WORDS = (
    "word", "Über", "naïve", "中文字", "日本語", "한국어", "😀", "👩\u200d👩\u200d👧", "e\u0301", "<|im_end|>",
    "<|im_start|>system", "<think>", "</think>", "<tool_call>", "</tool_response>", "\n", "\n\n", "  ", "\t", "1234567890",
    '{"a": 1}', "'s", "don't", "http://x.y/z?q=1", "\x1c", "\u2028", "AAAA/BBBB+CCCC==", "if x:\n    return y\n",
)  # fmt: skip


def recorded(path: str) -> list[list[Json]]:
    """Of each recording the bodies that went to this path, whole and in order."""
    found = []
    for file in sorted((DATA / "clis").glob("*.jsonl.gz")):
        requests = map(json.loads, gzip.decompress(file.read_bytes()).decode().splitlines())
        bodies = [
            {**json.loads(request["body"]), "model": MODEL} for request in requests if request["path"].split("?")[0] == path
        ]
        if bodies:
            found.append(bodies)
    return found


def agent_sessions() -> list[list[Json]]:
    """Turns of each recorded session, with the assistant's outputs between the inputs."""
    sessions = []
    for file in sorted((DATA / "lmcache_agent").glob("*.jsonl.zst")):
        lines = zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read().decode().splitlines()
        for session in read_sessions(lines):
            turns = range(len(session.turns))
            sessions.append([{"model": MODEL, "messages": session.messages(turn, 1 << 30)} for turn in turns])
    return sessions


def random_bodies(seed: int, count: int) -> Iterator[Json]:
    for number in range(count):
        yield random_body(random.Random(f"{seed}/{number}"))


def cornered_bodies(seed: int, count: int) -> Iterator[Json]:
    """Random bodies with what clients seldom send, some of them refused."""
    for number in range(count):
        rng = random.Random(f"corners/{seed}/{number}")
        body = random_body(rng)
        for _ in range(rng.randint(1, 3)):
            rng.choice(_CORNERS)(rng, body)
        yield body


def random_body(rng: random.Random) -> Json:
    messages = []
    if rng.random() < 0.6:
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": _content(rng)})
    for _ in range(rng.randint(1, 4)):
        messages += _exchange(rng)
    if rng.random() < 0.7:
        messages.append({"role": "user", "content": _content(rng)})
    body: Json = {"model": MODEL, "messages": messages}
    if rng.random() < 0.7:
        body["tools"] = [_tool(rng, number) for number in range(rng.randint(1, 3))]
        if rng.random() < 0.4:
            body["tool_choice"] = rng.choice(["auto", "none", {"type": "function", "function": {"name": "tool0"}}])
    if rng.random() < 0.2:
        body["reasoning_effort"] = rng.choice(["none", "low", "high"])
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5, "unknown": [1]}
    return body


def text(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randint(0, most)))


def _content(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return text(rng)
    return [
        {"type": "text", "text": text(rng), **({"cache_control": {}} if rng.random() < 0.3 else {})}
        for _ in range(rng.randint(1, 3))
    ]


def _exchange(rng: random.Random) -> list[Json]:
    user: Json = {"role": "user", "content": _content(rng)}
    if rng.random() < 0.1:
        user["name"] = "bob"
    answer: Json = {"role": "assistant", "content": rng.choice([text(rng), "", None, _content(rng)])}
    if rng.random() < 0.3:
        answer["reasoning_content"] = text(rng)
    if rng.random() < 0.1:
        answer["refusal"] = None
    if rng.random() < 0.5:
        return [user, answer] if answer["content"] is not None else [user, {**answer, "content": "ok"}]
    calls = [_call(rng, number) for number in range(rng.randint(1, 3))]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": _content(rng)} for call in calls]
    if rng.random() < 0.1:
        results[0]["name"] = calls[0]["function"]["name"]
    return [user, {**answer, "tool_calls": calls}, *results]


def _call(rng: random.Random, number: int) -> Json:
    arguments = {text(rng, 2) or "k": rng.choice([text(rng), 1, 1.5, -0.0, True, None, [1, {"b": "é"}], 2**40, 1e300, {}])}
    written = rng.choice(["{}", json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))])
    call = {
        "id": f"functions.tool{number}:{number}",
        "type": "function",
        "function": {"name": f"tool{number}", "arguments": written},
    }
    if rng.random() < 0.1:
        call["index"] = number
    return call


def _tool(rng: random.Random, number: int) -> Json:
    schema: Json = {"type": "object", "properties": {"a": {"type": "string", "description": text(rng, 4)}}, "required": ["a"]}
    function: Json = {"name": f"tool{number}", "description": text(rng), "parameters": schema}
    if rng.random() < 0.3:
        function = dict(reversed(function.items()))
    if rng.random() < 0.2:
        function["strict"] = rng.choice([True, False, None])
    if rng.random() < 0.2:
        del function["description"]
    if rng.random() < 0.1:
        function["unknown"] = 1
    tool: Json = {"type": "function", "function": function}
    if rng.random() < 0.1:
        tool["defer_loading"] = True
    return tool


def _ends_with_assistant(rng: random.Random, body: Json) -> None:
    body["messages"].append({"role": "assistant", "content": rng.choice([text(rng), "plain end", "end with space  "])})
    if rng.random() < 0.6:
        body["continue_final_message"] = True
        if rng.random() < 0.8:
            body["add_generation_prompt"] = False


def _no_generation_prompt(rng: random.Random, body: Json) -> None:
    body["add_generation_prompt"] = False


def _odd_parts(rng: random.Random, body: Json) -> None:
    message = rng.choice(body["messages"])
    parts = [
        {"type": "text", "text": text(rng), "extra": 1},
        {"type": "text", "text": ""},
        {"type": "tool_reference", "name": "tool0"},
    ]
    if message["role"] == "assistant":
        parts += [{"type": "thinking", "thinking": text(rng)}]
    message["content"] = rng.sample(parts, rng.randint(1, len(parts)))


def _odd_arguments(rng: random.Random, body: Json) -> None:
    for message in body["messages"]:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = rng.choice(
                ["{", "[1]", "", '{"a": 123456789012345678901234567890}', '{"a": 1, "a": 2}', '{"n": 1E2}', '{"a": -0}']
            )
            if rng.random() < 0.3:
                call["function"]["unknown"] = rng.choice([None, 1, "x"])


def _names(rng: random.Random, body: Json) -> None:
    for message in body["messages"]:
        if rng.random() < 0.5:
            message["name"] = rng.choice(["bob", "Ünï", ""])


def _odd_schema(rng: random.Random, body: Json) -> None:
    for tool in body.get("tools") or []:
        kinds = ["varchar", "int32", "list[str]", "dict", "VARCHAR(25)", "unknown", ["int", "integer", "null"]]
        inner = {"anyOf": [{"type": "uuid"}, {"type": "number"}], "items": {"type": "datetime"}}
        tool["function"]["parameters"] = {"type": "object", "properties": {"a": {"type": rng.choice(kinds)}, "b": inner}}


def _reasoning(rng: random.Random, body: Json) -> None:
    body["reasoning"] = rng.choice([{"effort": "high"}, {"enabled": True}, {"enabled": "no"}, {"effort": 0.5}, {}])
    for message in body["messages"]:
        if message["role"] == "assistant" and rng.random() < 0.5:
            message["reasoning"] = text(rng)


def _efforts(rng: random.Random, body: Json) -> None:
    body["chat_template_kwargs"] = {"reasoning_effort": rng.choice(["low", None]), "thinking": True}
    if rng.random() < 0.5:
        body["reasoning_effort"] = "medium"


def _developers(rng: random.Random, body: Json) -> None:
    place = rng.randint(0, len(body["messages"]))
    body["messages"].insert(place, {"role": rng.choice(["developer", "system"]), "content": _content(rng)})


def _billing(rng: random.Random, body: Json) -> None:
    line = "x-anthropic-billing-header: cch=1"
    parts = [{"type": "text", "text": rng.choice([line, line + "\nrest"])}, {"type": "text", "text": "rules"}]
    body["messages"].insert(0, {"role": "system", "content": rng.choice([parts, line + "\nrules"])})


def _empty(rng: random.Random, body: Json) -> None:
    body["tools"] = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["tool_calls"] = rng.choice([[], None]) if "tool_calls" not in message else message["tool_calls"]


_CORNERS = (
    _ends_with_assistant, _no_generation_prompt, _odd_parts, _odd_arguments, _names, _odd_schema, _reasoning, _efforts,
    _developers, _billing, _empty,
)  # fmt: skip
