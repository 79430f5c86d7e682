"""What one client protocol looks like from outside: its path, where its messages lie, its errors and its events.

A dialect is a stateless object of pure functions over bytes. It knows nothing of engines, threads or sockets; an event is one
SSE block as it came off the wire, with or without its closing blank line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, StrEnum
from typing import ClassVar

import msgspec

from router.errors import GatewayError


class DialectName(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class EventKind(Enum):
    """What one SSE block means to the relay. Only COMMENT and PREAMBLE may still be taken back by retrying elsewhere."""

    COMMENT = "comment"  # no data line: keep-alives
    PREAMBLE = "preamble"  # sent before any output exists: response.created, message_start, ping
    OUTPUT = "output"  # carries something the model produced, or closes it
    TRAILER = "trailer"  # usage or engine details without a choice
    ERROR = "error"  # the engine failed inside a 200 stream
    DONE = "done"  # nothing follows


_REVOCABLE = frozenset({EventKind.COMMENT, EventKind.PREAMBLE})


class Dialect(ABC):
    """One protocol. `classify`, `usage` and `finish_reason` never raise, whatever the engine sent."""

    name: ClassVar[DialectName]
    path: ClassVar[str]
    message_key: ClassVar[str]  # body key of the conversation
    system_key: ClassVar[str | None]  # body key of a system prompt kept apart from the messages
    requires_messages: ClassVar[bool]  # a body without a message list is refused
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"
    # What a piece of whole events must hold before `finish_reason` is worth calling. A quote inside a JSON string is
    # escaped, so model output cannot fake it.
    finish_marker: ClassVar[bytes] = b'"finish_reason":"'

    @abstractmethod
    def error_body(self, error: GatewayError) -> bytes:
        """The error as this protocol's clients expect to read it."""

    @abstractmethod
    def error_event(self, error: GatewayError) -> bytes:
        """The error as one SSE block. A broken stream is aborted instead wherever the transport can (clis.md 0.15-16)."""

    @abstractmethod
    def classify(self, event: bytes) -> EventKind: ...

    @abstractmethod
    def usage(self, reply: bytes) -> bytes | None:
        """The raw usage object of a whole reply or of one event's JSON; None where it has none (or null)."""

    @abstractmethod
    def finish_reason(self, data: bytes) -> str | None:
        """Why the model stopped, from a whole reply or from one event; None where it does not say."""

    def merge_usage(self, earlier: bytes | None, later: bytes) -> bytes:
        """Usage of a stream that reports it in pieces. Here the last report is complete."""
        return later

    def is_error(self, event: bytes) -> bool:
        """Whether one event says that the engine failed."""
        return self.classify(event) is EventKind.ERROR

    def may_hold_error(self, events: bytes) -> bool:
        """Cheap, never false for a piece of whole events that holds an error event."""
        return b'"error"' in events or b": error" in events

    def may_hold_usage(self, events: bytes) -> bool:
        """Cheap, never false for a piece of whole events that holds a usage object."""
        return b'"usage":{' in events or b'"usage": {' in events

    def has_end(self, events: bytes) -> bool:
        """Whether a piece of whole events holds the one that closes a complete stream."""
        return b"[DONE]" in events and any(self.classify(event) is EventKind.DONE for event in split_blocks(events))

    def has_real_event(self, events: bytes) -> bool:
        """Whether a piece of whole events holds one that a retry could not take back: output, an error or the end."""
        return any(self.classify(event) not in _REVOCABLE for event in split_blocks(events))

    def event_data(self, event: bytes) -> bytes:
        """The JSON of one event; empty where it has none."""
        return event_data(event) or b""


class _ErrorMembers(msgspec.Struct, omit_defaults=False):
    message: str
    type: str
    code: str | None
    param: str | None


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorMembers


def openai_error(error: GatewayError) -> bytes:
    """`{"error":{"message","type","code","param"}}`: every client of the OpenAI protocols reads this shape (clis.md 0.11)."""
    return msgspec.json.encode(_ErrorEnvelope(_ErrorMembers(error.message, error.type, error.code, error.param)))


def split_blocks(events: bytes) -> list[bytes]:
    """The SSE blocks of a piece of whole events, CRLF or LF."""
    if b"\r" in events:
        events = events.replace(b"\r\n", b"\n")
    return [block for block in events.split(b"\n\n") if block]


def event_data(event: bytes) -> bytes | None:
    """The joined `data:` lines of one SSE block, or None where it has none."""
    if event.startswith(b"data: ") and b"\n" not in event.rstrip():
        return event[6:].rstrip()
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def event_name(event: bytes) -> bytes | None:
    """The `event:` field of one SSE block."""
    if not event.startswith(b"event:") and b"\nevent:" not in event:
        return None
    for line in event.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip()
    return None
