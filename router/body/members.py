"""Finds members of a JSON object as byte spans, so that replies can be cut and merged without re-serialising them.

For whole, valid JSON as an engine sends it; small inputs, since it walks in Python. Raises ValueError on anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^,\]} \t\r\n]+")
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_QUOTE, _OPEN, _LIST, _COMMA, _COLON = b'"{[,:'
_ENDS = b"]}"


class Member(NamedTuple):
    """`text[start:value]` is the quoted key and its colon, `text[value:end]` the value."""

    key: bytes  # as written, without quotes
    start: int
    value: int
    end: int


def members(text: bytes, at: int = 0) -> Iterator[Member]:
    """The members of the object that begins at or after `at`, in order."""
    at = _enter(text, at, _OPEN)
    while text[at] not in _ENDS:
        key = _match(_STRING, text, at)
        colon = _skip(text, key)
        if text[colon] != _COLON:
            raise ValueError(f"expected a colon at byte {colon}")
        value = _skip(text, colon + 1)
        end = value_end(text, value)
        yield Member(text[at + 1 : key - 1], at, value, end)
        at = _next(text, end)


def elements(text: bytes, at: int = 0) -> Iterator[tuple[int, int]]:
    """The spans of the elements of the list that begins at or after `at`."""
    at = _enter(text, at, _LIST)
    while text[at] not in _ENDS:
        end = value_end(text, at)
        yield at, end
        at = _next(text, end)


def member(text: bytes, key: bytes, at: int = 0) -> Member | None:
    """The member of that key; of equal keys the last."""
    return next((found for found in reversed(list(members(text, at))) if found.key == key), None)


def value_end(text: bytes, at: int) -> int:
    """The offset behind the value that begins at `at`."""
    first = text[at]
    if first == _QUOTE:
        return _match(_STRING, text, at)
    if first not in (_OPEN, _LIST):
        return _match(_SCALAR, text, at)
    depth = 0
    for found in _BRACKETS.finditer(text, at):
        token = text[found.start()]
        if token == _QUOTE:
            continue
        depth += -1 if token in _ENDS else 1
        if depth == 0:
            return found.end()
    raise ValueError("the JSON ends inside a value")


def _enter(text: bytes, at: int, bracket: int) -> int:
    at = _skip(text, at)
    if at >= len(text) or text[at] != bracket:
        raise ValueError(f"expected {chr(bracket)!r} at byte {at}")
    return _skip(text, at + 1)


def _next(text: bytes, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == _COMMA else at


def _skip(text: bytes, at: int) -> int:
    return _match(_SPACE, text, at)


def _match(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"unexpected JSON at byte {at}")
    return found.end()
