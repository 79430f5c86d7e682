"""An agent's conversation of any length, made of the Python library's own sources: prose, code and data as agents read them."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

Message = dict[str, Any]

_SYSTEM_CHARS = 8_000
_TOOLS = 10
_TOOL_CHARS = 500
_CALL_CHARS = 240  # what a turn has beside its tool's output


def library_text(chars: int) -> str:
    """The first sources of the standard library, in order of their names."""
    found: list[str] = []
    total = 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found.append(file.read_text(encoding="utf-8", errors="replace"))
        total += len(found[-1])
        if total >= chars:
            break
    return "".join(found)


class Talk:
    """Grows turn by turn: the assistant calls a tool and gets its output."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.chars = 0  # of text so far
        self.tools = [self._tool(number) for number in range(_TOOLS)]
        self.messages: list[Message] = [
            {"role": "system", "content": self._take(_SYSTEM_CHARS)},
            {"role": "user", "content": "Please find out why the tests fail, and mend it."},
        ]

    def body(self, *further: Message) -> bytes:
        """The request, with further messages at its end that do not stay."""
        messages = [*self.messages, *further]
        return json.dumps({"model": "m", "messages": messages, "tools": self.tools, "stream": True}).encode()

    def grow(self, chars: int) -> None:
        """By a turn of some `chars` characters."""
        self.messages += self.turn(self._take(max(chars - _CALL_CHARS, 40)))

    def turn(self, output: str) -> list[Message]:
        """What a turn adds whose tool says this."""
        number = len(self.messages)
        call = {
            "name": f"tool{number % _TOOLS}",
            "arguments": json.dumps({"command": f"cat part{number}", "why": self._take(60)}),
        }
        identity = f"functions.{call['name']}:{number}"
        calls = [{"id": identity, "type": "function", "function": call}]
        return [
            {"role": "assistant", "content": self._take(80), "tool_calls": calls},
            {"role": "tool", "tool_call_id": identity, "content": output},
        ]

    def _tool(self, number: int) -> Message:
        properties = {f"value{index}": {"type": "string", "description": self._take(60)} for index in range(6)}
        function = {
            "name": f"tool{number}",
            "description": self._take(_TOOL_CHARS),
            "parameters": {"type": "object", "properties": properties, "required": ["value0"]},
        }
        return {"type": "function", "function": function}

    def _take(self, chars: int) -> str:
        if self._at + chars > len(self._text):
            self._at = (self._at + 7919) % max(len(self._text) - chars, 1) if chars < len(self._text) else 0
        taken = self._text[self._at : self._at + chars]
        self._at += chars
        self.chars += chars
        return taken
