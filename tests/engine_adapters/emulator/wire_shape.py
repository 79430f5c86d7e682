"""The shape of a reply: members in their order, types, and the values that do not depend on what a model says."""

from __future__ import annotations

import json
import re
from typing import Any

_TELLING = {"object", "type", "role", "status", "name", "param", "message", "owned_by", "id_prefix"}
_COUNTED = {"index", "code", "prompt_tokens", "content_index", "output_index"}
_FREE = {"top_logprobs", "input"}  # keyed by tokens, or by what the caller sent
_NUMBERS = re.compile(r"[0-9a-f]{32}|\d{9,}")


def shape(value: Any, key: str = "") -> Any:
    """Equal for two replies of the same kind. Runs of list items with one shape count once."""
    if isinstance(value, dict):
        if key in _FREE:
            return "dict"
        return [(name, shape(one, name)) for name, one in value.items() if name != "engine"]
    if isinstance(value, list):
        return _distinct([shape(one, key) for one in value])
    if isinstance(value, str):
        return _text(value, key)
    if value is None or isinstance(value, bool) or key in _COUNTED:
        return value
    return "number"


def stream_shape(body: str) -> list[Any]:
    """The events of an SSE body, runs of one shape counted once."""
    found = []
    for block in body.strip().split("\n\n"):
        name = "".join(line for line in block.split("\n") if line.startswith("event:"))
        data = "".join(line[6:] for line in block.split("\n") if line.startswith("data: "))
        found.append(("event", name, data if data == "[DONE]" else shape(json.loads(data))))
    return _distinct(found)


def _text(value: str, key: str) -> str:
    if key not in _TELLING:
        return "text"
    if re.match(r"\d validation error", value):
        return "validation error"
    return _NUMBERS.sub("#", value)


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not found or found[-1] != item:
            found.append(item)
    return found
