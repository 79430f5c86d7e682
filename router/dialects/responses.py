"""OpenAI Responses: named events, the whole response in the last one, usage inside it."""

from __future__ import annotations

import msgspec

from router.dialects.dialect import Dialect, DialectName, EventKind, event_data, event_name, openai_error, split_blocks
from router.errors import GatewayError

_PREAMBLE = frozenset({b"response.created", b"response.in_progress", b"response.queued", b"keepalive"})
_TERMINAL = frozenset({b"response.completed", b"response.incomplete", b"response.cancelled"})
_FAILED = frozenset({b"error", b"response.failed"})
_NULL = b"null"


class _Response(msgspec.Struct):
    status: str | None = None
    usage: msgspec.Raw = msgspec.Raw(_NULL)
    incomplete_details: dict[str, object] | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    response: _Response | None = None
    error: msgspec.Raw = msgspec.Raw(_NULL)


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)


class Responses(Dialect):
    name = DialectName.RESPONSES
    path = "/v1/responses"
    message_key = "input"
    system_key = "instructions"
    requires_messages = False
    # Codex's idle limit is not reset by SSE comments; any real event does it (clis.md 0.20).
    keep_alive = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    finish_marker = b'"incomplete_details":'  # only in whole response objects

    def error_body(self, error: GatewayError) -> bytes:
        return openai_error(error)

    def error_event(self, error: GatewayError) -> bytes:
        fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + msgspec.json.encode(fields) + b"\n\n"

    def classify(self, event: bytes) -> EventKind:
        data = event_data(event)
        if data is None:
            return EventKind.COMMENT
        if data == b"[DONE]":
            return EventKind.TRAILER  # some engines add it; what ends a response is the event that says so
        kind = event_name(event)
        if kind is None:
            return _classify_unnamed(data)
        return _classify_name(kind)

    def has_end(self, events: bytes) -> bool:
        return _ends(events) and any(self.classify(event) is EventKind.DONE for event in split_blocks(events))

    def usage(self, reply: bytes) -> bytes | None:
        if b'"usage"' not in reply:
            return None
        response = _response(reply)
        raw = bytes(response.usage) if response is not None else _NULL
        return None if raw == _NULL else raw

    def finish_reason(self, data: bytes) -> str | None:
        """`completed`, `failed`, `cancelled`, or the reason of an incomplete response. Deltas say nothing."""
        response = _response(data)
        if response is None or response.status in (None, "in_progress", "queued"):
            return None
        reason = (response.incomplete_details or {}).get("reason")
        return reason if isinstance(reason, str) else response.status


def _ends(events: bytes) -> bool:
    return any(name in events for name in _TERMINAL)


def _classify_name(kind: bytes) -> EventKind:
    if kind in _FAILED:
        return EventKind.ERROR
    if kind in _PREAMBLE:
        return EventKind.PREAMBLE
    return EventKind.DONE if kind in _TERMINAL else EventKind.OUTPUT


def _classify_unnamed(data: bytes) -> EventKind:
    try:
        event = _EVENT.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return EventKind.ERROR
    if event.type is None:
        return EventKind.ERROR if bytes(event.error) != _NULL else EventKind.OUTPUT
    return _classify_name(event.type.encode())


def _response(data: bytes) -> _Response | None:
    """The response object of a lifecycle event or of a whole reply. Delta events have none."""
    body = event_data(data)
    try:
        if body is None:
            return _RESPONSE.decode(data)
        return _EVENT.decode(body).response
    except (msgspec.DecodeError, RecursionError):
        return None
