"""What chat and completions share: chunks with `choices`, usage at top level, errors as `data: {"error": …}`."""

from __future__ import annotations

import re

import msgspec

from router.dialects.dialect import Dialect, EventKind, event_data, openai_error
from router.errors import GatewayError

# A quote inside a JSON string is escaped, so these can only match real members.
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([^"\\]*)"')
_MAY_FAIL = re.compile(rb'"error"')


class _Top(msgspec.Struct):
    """The members of a chunk or reply that say what it is."""

    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None


_TOP = msgspec.json.Decoder(_Top)
_NULL = b"null"


def _top(data: bytes) -> _Top | None:
    try:
        return _TOP.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


class OpenAIStream(Dialect):
    """Base of the two dialects whose stream is a series of `data: {chunk}` closed by `data: [DONE]`."""

    def error_body(self, error: GatewayError) -> bytes:
        return openai_error(error)

    def error_event(self, error: GatewayError) -> bytes:
        return b"data: " + openai_error(error) + b"\n\n"

    def classify(self, event: bytes) -> EventKind:
        data = event_data(event)
        if data is None:
            return EventKind.COMMENT
        if data == b"[DONE]":
            return EventKind.DONE
        if _MAY_FAIL.search(data) is None and b'"choices":[{' in data:
            return EventKind.OUTPUT
        return _classify_parsed(_top(data))

    def usage(self, reply: bytes) -> bytes | None:
        if b'"usage"' not in reply:
            return None
        top = _top(reply if reply.startswith(b"{") else event_data(reply) or reply)
        raw = bytes(top.usage) if top is not None else _NULL
        return None if raw == _NULL else raw

    def finish_reason(self, data: bytes) -> str | None:
        at = data.find(b'"finish_reason"')  # a search from there on: replies may be long
        found = _FINISH.search(data, at) if at >= 0 else None
        return found.group(1).decode() if found else None


def _classify_parsed(top: _Top | None) -> EventKind:
    if top is None or bytes(top.error) != _NULL or top.object == "error":
        return EventKind.ERROR
    return EventKind.OUTPUT if top.choices else EventKind.TRAILER
