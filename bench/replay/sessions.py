"""Text sessions of recorded agents (LMCache's agent traces) as append-only chats, the agent's own outputs put back in.

A call of the trace holds everything said so far except what the assistant said; the rest of its text is what is new since the
call before. Several roles may share a session id: each is a thread of its own here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class TextSession:
    """`turns[i]` is the user text that call i adds; `outputs[i]` what the agent answered then."""

    session_id: str
    turns: tuple[str, ...]
    outputs: tuple[str, ...]

    def messages(self, turn: int, text_chars: int) -> list[Message]:
        """The chat of call `turn`, every text cut to its first `text_chars` characters."""
        chat: list[Message] = []
        for i in range(turn + 1):
            chat.append({"role": "user", "content": self.turns[i][:text_chars]})
            if i < turn:
                chat.append({"role": "assistant", "content": self.outputs[i][:text_chars]})
        return chat


def read_sessions(lines: Iterable[str]) -> list[TextSession]:
    """Threads in order of their first call; calls in order of time."""
    calls: dict[str, list[tuple[int, str, str]]] = {}
    for line in lines:
        call = json.loads(line)
        calls.setdefault(call["session_id"], []).append((call["timestamp"], call["input"], call["output"]))
    return [thread.as_session(name) for name, parts in calls.items() for thread in _threads(sorted(parts))]


@dataclass(slots=True)
class _Thread:
    before: str
    turns: list[str]
    outputs: list[str]

    def takes(self, text: str) -> bool:
        return len(text) > len(self.before) and text.startswith(self.before)

    def add(self, text: str, output: str) -> None:
        self.turns.append(text[len(self.before) :].strip() or "go on")
        self.outputs.append(output or "ok")
        self.before = text

    def as_session(self, name: str) -> TextSession:
        return TextSession(name, tuple(self.turns), tuple(self.outputs))


def _threads(calls: list[tuple[int, str, str]]) -> list[_Thread]:
    """A call continues the thread that it extends the furthest; one that extends none (a second role) starts another."""
    threads: list[_Thread] = []
    for _, text, output in calls:
        fitting = [thread for thread in threads if thread.takes(text)]
        thread = max(fitting, key=lambda candidate: len(candidate.before), default=None)
        if thread is None:
            thread = _Thread("", [], [])
            threads.append(thread)
        thread.add(text, output)
    return threads
