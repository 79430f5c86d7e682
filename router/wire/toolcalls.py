"""Notices in a streamed reply when a tool call is complete: the moment its argument JSON closes, before the reply ends.

Only pieces that hold a tool marker are parsed (`concerns`), and of those only the members that matter. Quotes inside JSON
strings are escaped, so text cannot fake a marker. Sutradhara (streaming tool dispatch) starts tools at that moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import TypeVar

import msgspec

from router.dialects.dialect import DialectName, event_data, split_blocks

_MAX_CALLS = 1024  # of one reply; what an engine streams beyond is not tracked
_Reader = tuple[Callable[[bytes], None], tuple[bytes, ...], tuple[bytes, ...]]  # and what begins or goes on, what ends
_IN_STRING = re.compile(r'[\\"]')
_OUTSIDE = re.compile(r'["{}\[\]]')


class ClosedToolCall(msgspec.Struct, frozen=True):
    """`index` counts calls as the dialect does: in the choice (chat), by output or content block (responses, messages)."""

    index: int
    name: str
    call_id: str
    closed_ms: float | None  # on the caller's clock


class JsonEnd:
    """Finds the end of one JSON object or array that comes in pieces. Other values have no end of their own."""

    __slots__ = ("_depth", "_in_string", "_skip", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = False
        self._skip = 0  # characters of the next piece that an escape has taken

    def feed(self, text: str) -> bool:
        """Whether the value is complete by now. What follows its end is ignored."""
        at = self._skip
        self._skip = 0
        while not self.closed:
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                break
            at = found.end()
            mark = found.group()
            if mark == "\\":
                at += 1
                self._skip = max(0, at - len(text))
            elif mark == '"':
                self._in_string = not self._in_string
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                self.closed = self._depth <= 0
        return self.closed


class _Open:
    __slots__ = ("call_id", "end", "index", "name")

    def __init__(self, index: int, name: str, call_id: str) -> None:
        self.index = index
        self.name = name
        self.call_id = call_id
        self.end = JsonEnd()


class ToolCallTracker:
    """One stream's tool calls. `closed` grows in the order in which they close."""

    __slots__ = ("_markers", "_now_ms", "_open", "_read", "_seen", "_stops", "closed")

    def __init__(self, dialect: DialectName) -> None:
        self.closed: list[ClosedToolCall] = []
        self._open: dict[Hashable, _Open] = {}
        self._seen: set[Hashable] = set()
        self._now_ms: float | None = None
        readers: dict[DialectName, _Reader] = {
            DialectName.CHAT: (
                self._read_chat,
                (b'"tool_calls":[', b'"tool_calls": ['),
                (b'"finish_reason":"', b'"finish_reason": "'),
            ),
            DialectName.RESPONSES: (self._read_responses, (b"function_call", b"custom_tool_call"), (b"output_item.done",)),
            DialectName.MESSAGES: (self._read_messages, (b'"tool_use"', b"input_json_delta"), (b"content_block_stop",)),
        }
        self._read, self._markers, self._stops = readers.get(dialect, (_ignore, (), ()))

    def concerns(self, events: bytes) -> bool:
        """Cheap: whether `feed` could learn anything from this piece of whole events."""
        for marker in self._markers:
            if marker in events:
                return True
        return bool(self._open) and any(marker in events for marker in self._stops)

    def feed(self, events: bytes, now_ms: float | None = None) -> None:
        """Read a piece of whole events. Never raises for what an engine sends."""
        self._now_ms = now_ms
        for block in split_blocks(events):
            data = event_data(block)
            if data is not None and data != b"[DONE]":
                self._read(data)

    # chat: choices[].delta.tool_calls[]; the id and name come first, arguments in pieces

    def _read_chat(self, data: bytes) -> None:
        chunk = _decode(_CHUNK, data)
        if chunk is None:
            return
        for choice in chunk.choices:
            for call in (choice.delta.tool_calls or ()) if choice.delta else ():
                self._take_chat(choice.index, call)
            if choice.finish_reason is not None:
                self._close_all(choice.index)

    def _take_chat(self, choice: int, call: _Call) -> None:
        key = (choice, call.index)
        function = call.function or _Function()
        if function.name and key not in self._seen:
            # Engines stream calls one after another: the next one's name ends the one before, whatever its arguments were.
            self._close_all(choice)
            self._begin(key, call.index, function.name, call.id or "")
        self._extend(key, function.arguments)

    def _close_all(self, choice: int) -> None:
        for key in [key for key in self._open if isinstance(key, tuple) and key[0] == choice]:
            self._close(key)

    # responses: an item is announced, its arguments come as deltas, and both are said to be done

    def _read_responses(self, data: bytes) -> None:
        event = _decode(_OUTPUT_EVENT, data)
        if event is None:
            return
        key = event.output_index
        item = event.item
        if item is not None and item.type in ("function_call", "custom_tool_call"):
            if event.type == "response.output_item.added":
                self._begin(key, key, item.name, item.call_id)
            elif event.type == "response.output_item.done":
                self._close(key)
        elif event.type == "response.function_call_arguments.delta":
            self._extend(key, event.delta)
        elif event.type in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            self._close(key)

    # messages: a content block starts as tool_use, its input comes as partial JSON, and the block stops

    def _read_messages(self, data: bytes) -> None:
        event = _decode(_BLOCK_EVENT, data)
        if event is None:
            return
        block, delta = event.content_block, event.delta
        if event.type == "content_block_start" and block is not None and block.type == "tool_use":
            self._begin(event.index, event.index, block.name, block.id)
        elif event.type == "content_block_delta" and delta is not None:
            self._extend(event.index, delta.partial_json)
        elif event.type == "content_block_stop":
            self._close(event.index)

    # what they share

    def _begin(self, key: Hashable, index: int, name: str, call_id: str) -> None:
        if key not in self._seen and len(self._seen) < _MAX_CALLS:
            self._seen.add(key)
            self._open[key] = _Open(index, name, call_id)

    def _extend(self, key: Hashable, text: str | None) -> None:
        call = self._open.get(key)
        if call is not None and text and call.end.feed(text):
            self._close(key)

    def _close(self, key: Hashable) -> None:
        call = self._open.pop(key, None)
        if call is not None:
            self.closed.append(ClosedToolCall(call.index, call.name, call.call_id, self._now_ms))


def _ignore(data: bytes) -> None:
    """Completions call no tools."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


class _Item(msgspec.Struct):
    type: str = ""
    name: str = ""
    call_id: str = ""


class _OutputEvent(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    item: _Item | None = None
    delta: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""


class _BlockDelta(msgspec.Struct):
    partial_json: str | None = None


class _BlockEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    content_block: _Block | None = None
    delta: _BlockDelta | None = None


_T = TypeVar("_T")
_CHUNK = msgspec.json.Decoder(_Chunk)
_OUTPUT_EVENT = msgspec.json.Decoder(_OutputEvent)
_BLOCK_EVENT = msgspec.json.Decoder(_BlockEvent)


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T | None:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None  # not an event of this dialect, or of a shape that says nothing about tools
