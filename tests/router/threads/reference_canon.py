"""The canonical form written for clarity, over parsed JSON: the oracle for `router.threads.canon`."""

from __future__ import annotations

import json
from typing import Any

DROPPED = {
    "cache_control", "id", "status", "annotations", "refusal", "__copilotMessageSource", "signature", "encrypted_content",
    "reasoning_content", "reasoning", "reasoning_details", "logprobs", "is_error", "caller",
}  # fmt: skip


def parts(content: Any) -> list[Any]:
    """A content as a list of parts; a text equals one text part."""
    if content in (None, "", []):
        return []
    if isinstance(content, str):
        return [["text", content]]
    return [part for raw in content if (part := _part(raw)) is not None]


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return ["text", part]
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return ["text", part.get("text", "")]
    if kind in ("thinking", "redacted_thinking", "reasoning"):
        return None
    if kind == "tool_use":
        return ["call", part["name"], arguments(part.get("input"))]
    if kind == "tool_result":
        return ["result", parts(part.get("content"))]
    return [kind, {key: value for key, value in part.items() if key not in DROPPED}]


def arguments(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(message: dict[str, Any]) -> list[Any] | None:
    kind = message.get("type")
    if kind == "reasoning":
        return None
    if kind == "function_call":
        return ["assistant", [["call", message["name"], arguments(message.get("arguments"))]]]
    if kind == "custom_tool_call":
        return ["assistant", [["call", message["name"], message.get("input")]]]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return ["tool", [["result", parts(message.get("output"))]]]
    found = parts(message.get("content"))
    for call in message.get("tool_calls") or []:
        found.append(["call", call["function"]["name"], arguments(call["function"].get("arguments"))])
    return ["tool", [["result", found]]] if message.get("role") == "tool" else [message.get("role"), found]


def chain(body: dict[str, Any], key: str) -> list[str]:
    """What stands at each position of a lineage, as text: the head, then every message after all before it."""
    tools = json.dumps(body.get("tools") or [], sort_keys=True)
    system = parts(body.get("system") or body.get("instructions"))
    links = [json.dumps([body.get("model"), tools, system])]
    messages = body.get(key)
    if not isinstance(messages, list):
        messages = [{"role": "user", "content": messages}]
    for form in map(canonical, messages):
        if form is not None:
            links.append(json.dumps([hash(links[-1]), form], ensure_ascii=False))
    return links
