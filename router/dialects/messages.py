"""Anthropic Messages: named events, usage split over message_start and message_delta, errors of its own shape."""

from __future__ import annotations

import re

import msgspec

from router.dialects.dialect import Dialect, DialectName, EventKind, event_data, event_name, split_blocks
from router.errors import GatewayError

_PREAMBLE = frozenset({b"message_start", b"ping"})
_STOP = re.compile(rb'"stop_reason"\s*:\s*"([^"\\]*)"')
_TYPE = re.compile(rb'"type"\s*:\s*"([^"\\]*)"')
_NULL = b"null"
# Anthropic's documented error types; SDK clients map them to classes (SGLang's own table agrees).
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class _Message(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(_NULL)


class _Event(msgspec.Struct):
    type: str | None = None
    message: _Message | None = None
    usage: msgspec.Raw = msgspec.Raw(_NULL)


_EVENT = msgspec.json.Decoder(_Event)


class Messages(Dialect):
    name = DialectName.MESSAGES
    path = "/v1/messages"
    message_key = "messages"
    system_key = "system"
    requires_messages = True
    keep_alive = b'event: ping\ndata: {"type": "ping"}\n\n'
    finish_marker = b'"stop_reason":"'

    def error_body(self, error: GatewayError) -> bytes:
        kind = _ERROR_TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def error_event(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + self.error_body(error) + b"\n\n"

    def classify(self, event: bytes) -> EventKind:
        data = event_data(event)
        if data is None:
            return EventKind.COMMENT
        kind = event_name(event) or _first_type(data)
        if kind is None or kind == b"error":
            return EventKind.ERROR
        if kind in _PREAMBLE:
            return EventKind.PREAMBLE
        return EventKind.DONE if kind == b"message_stop" else EventKind.OUTPUT

    def has_end(self, events: bytes) -> bool:
        return b"message_stop" in events and any(self.classify(event) is EventKind.DONE for event in split_blocks(events))

    def usage(self, reply: bytes) -> bytes | None:
        if b'"usage"' not in reply:
            return None
        try:
            event = _EVENT.decode(event_data(reply) or reply)
        except (msgspec.DecodeError, RecursionError):
            return None
        raw = bytes(event.message.usage if event.message is not None else event.usage)
        return None if raw == _NULL else raw

    def finish_reason(self, data: bytes) -> str | None:
        found = _STOP.search(data)
        return found.group(1).decode() if found else None

    def merge_usage(self, earlier: bytes | None, later: bytes) -> bytes:
        """message_start tells the input tokens, message_delta the output tokens; a null never hides a number."""
        if earlier is None:
            return later
        first: dict[str, msgspec.Raw] = msgspec.json.decode(earlier, type=dict[str, msgspec.Raw])
        last: dict[str, msgspec.Raw] = msgspec.json.decode(later, type=dict[str, msgspec.Raw])
        return msgspec.json.encode(first | {key: raw for key, raw in last.items() if bytes(raw) != _NULL})


def _first_type(data: bytes) -> bytes | None:
    found = _TYPE.search(data)
    return found.group(1) if found else None
