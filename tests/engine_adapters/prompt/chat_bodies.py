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


def recorded(*paths: str) -> list[Json]:
    """Bodies of all recordings that went to one of these paths, whole."""
    found = []
    for file in sorted((DATA / "clis").glob("*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).decode().splitlines():
            request = json.loads(line)
            if request["path"].split("?")[0] in paths and request["body"]:
                found.append({**json.loads(request["body"]), "model": MODEL})
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
