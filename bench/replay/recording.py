"""Recorded requests of agent CLIs as values, and the rule by which long ones are shortened for small models.

The rule: a string of a body longer than `text_chars` is cut to its first `text_chars` characters, and of a tool list only the
first `tools` are kept. It looks at nothing but the string itself, so equal text stays equal, shared prefixes stay shared and
append-only conversations stay append-only. What was cut is counted.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NEVER_CUT = frozenset({"role", "type", "name", "id", "call_id", "tool_call_id", "tool_use_id", "model", "prompt_cache_key"})


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as the CLI sent it."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: dict[str, Any]


@dataclass(slots=True)
class Cut:
    """What the shortening removed."""

    strings: int = 0
    chars: int = 0
    tools: int = 0
    kept_chars: int = 0

    def add(self, text: str, limit: int) -> str:
        self.kept_chars += min(len(text), limit)
        if len(text) <= limit:
            return text
        self.strings += 1
        self.chars += len(text) - limit
        return text[:limit]


@dataclass(frozen=True, slots=True)
class Shortening:
    text_chars: int = 400
    tools: int = 6
    cut: Cut = field(default_factory=Cut)

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """A shortened copy. Tool schemas keep their structure; arguments that are JSON in a string are never cut open."""
        shortened = {key: self._value(key, value) for key, value in body.items() if key != "tools"}
        if isinstance(body.get("tools"), list):
            kept = body["tools"][: self.tools]
            self.cut.tools += len(body["tools"]) - len(kept)
            shortened["tools"] = [self._value("tools", tool) for tool in kept]
        return shortened

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(key, value)
        if isinstance(value, list):
            return [self._value(key, item) for item in value]
        if isinstance(value, dict):
            return {inner: self._value(inner, item) for inner, item in value.items()}
        return value

    def _text(self, key: str, text: str) -> str:
        if key in _NEVER_CUT:
            return text
        if key == "arguments" and len(text) > self.text_chars:
            return json.dumps(self._value("", json.loads(text)))
        return self.cut.add(text, self.text_chars)


def read_recording(path: Path) -> Iterator[Recorded]:
    """The POSTs with a body of one `NAME.jsonl.gz`, in the order in which they were sent."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["method"] == "POST" and entry.get("body"):
                headers = tuple((name.lower(), value) for name, value in entry["headers"])
                yield Recorded(entry["path"], headers, json.loads(entry["body"]))
