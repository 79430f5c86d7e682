"""Watches a rewritten chat template while it runs: where each message begins, what was read for it, and what must be put back.

It answers the calls that `loop_source` put into the template, and notes what a later run has to compare.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import jinja2
import msgspec
import xxhash
from jinja2.utils import Namespace

from engine_adapters.prompt import loop_source
from engine_adapters.prompt.loop_source import LoopShape, NotLoopWise
from engine_adapters.prompt.message_view import Message, MessageView

NEVER = 0xFFFF_FFFF
"""The reach of an iteration that looked at the end of the conversation."""

_LONG_TEXT = 256
_MANY_SPACES = 64

Value = tuple[str, object]
Spaces = tuple[tuple[str, Value], ...]


class LoopTrace(msgspec.Struct, frozen=True):
    """What a later run compares. `head`: digest and characters of what the template prints before its loop. `entry`: the
    variables there. `spaces`: the namespaces at the loop's beginning and wherever they changed, as (message, values)."""

    head: bytes
    head_chars: int
    base: int  # messages before the first that the loop goes over
    entry: tuple[Value | tuple[str, Value], ...]
    spaces: tuple[tuple[int, Spaces], ...]

    def spaces_at(self, message: int) -> Spaces:
        return next((values for index, values in reversed(self.spaces) if index <= message), ())


class LoopRun(msgspec.Struct, frozen=True):
    """`text`: the prompt from message `first` on, or all of it. Of each message from there on the characters before it, counted
    in the whole prompt, and the furthest message that was read for it (its reach). Typecode I."""

    text: str
    first: int
    chars: array[int]
    reaches: array[int]
    trace: LoopTrace | None  # None: no later run can begin in the middle


class Changed(Exception):
    """A run from the middle cannot be right: something before has changed."""


class Watch:
    """Answers the calls that were put into the template, and is told which messages it reads."""

    def __init__(
        self,
        shape: LoopShape,
        start: int,
        start_chars: int,
        before: LoopTrace | None,
        tools: object,
        now: Callable[[], datetime],
    ) -> None:
        self.parts: list[str] = []
        self.chars = 0
        self._shape = shape
        self._first = start
        self._start_chars = start_chars
        self._before = before
        self._tools = tools
        self._now = now
        self._namespaces: list[Namespace] = []
        self._messages = 0
        self._in_loop = False
        self._reach = 0
        self._base = before.base if before is not None else 0
        self._offsets = array("I")
        self._reaches = array("I")
        self._head, self._head_chars = b"", 0
        self._entry: tuple[Value | tuple[str, Value], ...] = ()
        self._spaces: list[tuple[int, Spaces]] = []
        self._repeatable = True

    def answers(self) -> dict[str, Any]:
        return {
            loop_source.ENTER: self._enter,
            loop_source.WINDOW: self._window,
            loop_source.MARK: self._mark,
            loop_source.LEAVE: self._leave,
            loop_source.START: self._first - self._base,
            "namespace": self._namespace,
            "strftime_now": self._strftime,
        }

    def read(self, index: int) -> None:
        if self._in_loop and index > self._reach:
            self._reach = index

    def read_end(self) -> None:
        if self._in_loop:
            self._reach = NEVER

    def result(self) -> LoopRun:
        """A template that left its loop early has not said where every message begins, and cannot be taken up later."""
        trace = None
        if self._repeatable and len(self._offsets) == self._messages - self._first and len(self._spaces) <= _MANY_SPACES:
            trace = LoopTrace(self._head, self._head_chars, self._base, self._entry, tuple(self._spaces))
        return LoopRun("".join(self.parts), self._first, self._offsets, self._reaches, trace)

    def _enter(self, *values: object) -> None:
        """The head is done. A run from the middle keeps only what follows, if the head came out as before."""
        self._entry = (*map(self._value, values), *self._space_values())
        self._head, self._head_chars = xxhash.xxh3_128_digest("".join(self.parts).encode()), self.chars
        before = self._before
        if before is None:
            return
        if (before.head, before.head_chars, before.entry) != (self._head, self._head_chars, self._entry):
            raise Changed
        self.parts.clear()
        self.chars = self._start_chars
        self._spaces = [change for change in before.spaces if change[0] <= self._first]
        self._restore(before.spaces_at(self._first))

    def _window(self, view: object) -> Sequence[Message]:
        if not isinstance(view, MessageView):
            raise NotLoopWise("the loop goes over a list made from the messages")
        if self._before is None:
            self._base = self._first = view.base
        elif view.base != self._base:
            raise Changed
        self._messages = view.base + view.size
        return view.window(self._first)

    def _mark(self) -> None:
        self._settle()
        index = self._first + len(self._offsets)
        self._in_loop = True
        self._offsets.append(self.chars)
        self._reach = NEVER if self._shape.counts_from_end else index + self._shape.looks_ahead
        values = self._space_values()
        if not self._spaces or self._spaces[-1][1] != values:
            self._spaces.append((index, values))

    def _leave(self) -> None:
        self._settle()
        self._in_loop = False

    def _settle(self) -> None:
        if self._in_loop:
            self._reaches.append(self._reach)

    def _namespace(self, *args: Any, **kwargs: Any) -> Namespace:
        namespace = Namespace(*args, **kwargs)
        if not self._in_loop:
            self._namespaces.append(namespace)
        return namespace

    def _strftime(self, form: str) -> str:
        if self._in_loop:
            self._reach = NEVER
        return self._now().strftime(form)

    def _space_values(self) -> Spaces:
        return tuple((name, self._plain(value)) for space in self._namespaces for name, value in members(space).items())

    def _restore(self, values: Spaces) -> None:
        """Set the namespaces to what they were at the message where the run begins."""
        names = [(space, name) for space in self._namespaces for name in members(space)]
        if [name for _, name in names] != [name for name, _ in values]:
            raise Changed
        for (space, name), (_, (_, value)) in zip(names, values, strict=True):
            space[name] = value

    def _plain(self, value: object) -> Value:
        """What a namespace holds, if it is small enough to be kept and put back."""
        if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONG_TEXT):
            return (type(value).__name__, value)
        self._repeatable = False
        return ("unknown", None)

    def _value(self, value: object) -> Value:
        """Something that is equal only if a template could not tell the difference; or the trace is given up."""
        if isinstance(value, jinja2.Undefined):
            return ("undefined", None)
        if value is self._tools and value is not None:
            return ("tools", None)
        if isinstance(value, MessageView):
            return ("messages", value.base)
        if isinstance(value, Namespace):
            return ("namespace", None)
        if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONG_TEXT):
            return (type(value).__name__, value)
        try:
            return ("digest", xxhash.xxh3_128_digest(msgspec.json.encode(value)))
        except (TypeError, UnicodeEncodeError):
            self._repeatable = False
            return ("unknown", None)


def members(namespace: Namespace) -> dict[str, Any]:
    """Jinja hides them from templates and from us alike."""
    found: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return found
