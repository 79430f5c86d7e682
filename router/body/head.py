"""What a body says before its conversation starts, and the proof that the conversation really starts there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from router.body.shape import Shape

_SPACE = re.compile(rb"[ \t\r\n]*")
_CANDIDATES = 4  # a body with more keys of that name than this is not worth remembering
_MAX_PREFIX_BYTES = 4096
_BULKY = frozenset({"tools", "system"})  # kept as spans: the same prefix holds them at the same place


class Span(NamedTuple):
    start: int
    end: int


class Head(msgspec.Struct, frozen=True, gc=False):
    """The members before the conversation. `prefix` is them again as an open JSON object whose last member is an open list
    with one element, so that `prefix + rest of the body` parses as the body would, the conversation so far left out. The
    element is an object, which ends by itself: a rest that goes on with the value before it (`12` with `3`) does not parse.
    """

    prefix: bytes
    tools: Span | None
    system: Span | None


class Opening(NamedTuple):
    head: Head
    offset: int  # just after the conversation's `[`


class HeadReader:
    """Finds openings in bodies of one dialect. `nonce` is a body key that no client can guess."""

    def __init__(self, shape: Shape, nonce: str) -> None:
        self._shape = shape
        self._sentinel = f'"{nonce}"'.encode()
        self._opening = b'"' + nonce.encode() + b'":[{}'
        key = re.escape(shape.dialect.message_key).encode()
        self._key = re.compile(rb'"' + key + rb'"[ \t\r\n]*:[ \t\r\n]*\[')

    def open(self, body: bytes, text: bytes, messages: Sequence[Raw]) -> Opening | None:
        """Where the list that begins with `messages[0]` begins in a valid body; None if that cannot be shown.

        `text` is the body as it was read. Spans are taken from bodies unread, so a head that had to be mended is refused.
        """
        first = memoryview(messages[0])
        for tried, found in enumerate(self._key.finditer(text)):
            if tried == _CANDIDATES:
                return None
            offset = found.end()
            if not text.startswith(first, _skip_space(text, offset)):
                continue
            head = self._read(text[: offset - 1])
            if head is not None and (text is body or text[:offset] == body[:offset]):
                return Opening(head, offset)
        return None

    def _read(self, before: bytes) -> Head | None:
        """The head, if `before` ends where the value of a top-level conversation key is due.

        It does exactly if closing the object after a value that occurs nowhere else gives valid JSON in which the top-level
        conversation is that value: inside a string or a nested value it would not parse, under another key not be it.
        """
        try:
            members = self._shape.raw_decoder.decode(before + self._sentinel + b"}")
        except (msgspec.DecodeError, RecursionError):
            return None
        raws = {name: bytes(value) for name in self._shape.keys if (value := getattr(members, name)) is not UNSET}
        if raws.pop("conversation", None) != self._sentinel:
            return None
        spans = {name: _span(before, raws.pop(name)) for name in _BULKY & raws.keys()}
        kept = [b'"' + self._shape.keys[name].encode() + b'":' + raw for name, raw in raws.items()]
        prefix = b"{" + b",".join([*kept, self._opening])
        if len(prefix) > _MAX_PREFIX_BYTES:
            return None
        return Head(prefix, spans.get("tools"), spans.get("system"))


def _span(text: bytes, raw: bytes) -> Span:
    """Where `raw` lies; of equal texts any occurrence serves."""
    start = text.find(raw)
    return Span(start, start + len(raw))


def _skip_space(text: bytes, offset: int) -> int:
    found = _SPACE.match(text, offset)
    return found.end() if found else offset
