"""Adds members to a JSON object as bytes, before its final brace, without copying or re-serialising what is there.

At the end because the last of equal keys wins in the engines, so that nothing a client sent outranks what is added.
"""

from __future__ import annotations

_SPACE = b" \t\r\n"
_OPEN, _CLOSE = b"{}"
_COPY_BELOW_BYTES = 16 * 1024  # one small write is cheaper than a gather of three


def splice(body: bytes, members: bytes) -> list[bytes | memoryview]:
    """`body` with `members` (`"a":1,"b":2`, no outer commas) added, as parts to be written one after another.

    `body` must be a valid JSON object; what follows its final brace is white space and is dropped. Raises ValueError otherwise.
    """
    if not members:
        return [body]
    end = _last(body, len(body))
    if body[end] != _CLOSE:
        raise ValueError("members can only be added to a JSON object")
    comma = b"" if body[_last(body, end)] == _OPEN else b","
    addition = comma + members + b"}"
    if end < _COPY_BELOW_BYTES:
        return [body[:end] + addition]
    return [memoryview(body)[:end], addition]


def _last(body: bytes, end: int) -> int:
    """Where the last byte before `end` lies that is not white space."""
    end -= 1
    while body[end] in _SPACE:
        end -= 1
    return end
