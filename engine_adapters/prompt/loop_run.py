"""Runs a rewritten chat template over a conversation, from its beginning or from one of its messages.

A run that begins at message j is right if what lies before j would come out again as it did: the template's head prints the
same and leaves its variables as they were, no iteration before j looked at a message that has changed since or at how many
there are, and the loop's namespaces stand as they stood there. All of that is noted in a full run and compared in a later one;
a template is a pure function of what it reads, so nothing else can differ (the clock is read through us, as a change).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import msgspec
import xxhash
from jinja2.utils import Namespace

from engine_adapters.prompt import loop_source
from engine_adapters.prompt.loop_source import LoopShape, NotLoopWise
from engine_adapters.prompt.message_view import LastUser, Message, MessageView
from engine_adapters.prompt.scan_idioms import LOOK
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal, new_environment

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


class LoopTemplate:
    """Raises NotLoopWise when the template's shape does not allow it."""

    def __init__(self, template: PromptTemplate) -> None:
        environment = new_environment(template.now)
        parsed = environment.parse(template.source)
        self._shape = loop_source.rewrite(parsed)
        self._template = environment.from_string(parsed)
        self._special_tokens = template.special_tokens
        self._now = template.now

    def run(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        start: int = 0,
        start_chars: int = 0,
        before: LoopTrace | None = None,
        last_user: LastUser | None = None,
    ) -> LoopRun:
        """From message `start` on, where a run with trace `before` had come after `start_chars` characters. `last_user` tells
        where the user's messages are, better than by looking at each.

        Raises Changed, TemplateRefusal, or NotLoopWise for what only shows while it runs.
        """
        watch = _Watch(self._shape, start, start_chars, before, tools, self._now)
        values = {
            "documents": None,
            **self._special_tokens,
            **variables,
            **watch.answers(),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "messages": MessageView(messages, watch),
            LOOK: _Look(messages, last_user or _last_user_of(messages)),
        }
        if start:
            values[loop_source.BEFORE] = messages[start - 1]
        try:
            for chunk in self._template.root_render_func(self._template.new_context(values)):
                watch.parts.append(chunk)
                watch.chars += len(chunk)
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateRefusal(str(error)) from error
        return watch.result()


class _Look:
    """Answers in the place of a loop that looks for the user's last question (see `scan_idioms`)."""

    def __init__(self, messages: Sequence[Message], last_user: LastUser) -> None:
        self._messages = messages
        self._last_user = last_user

    def __call__(self, namespace: Namespace, index: str, flag: str | None) -> None:
        if flag is not None and not _members(namespace).get(flag):
            return
        place = self._last_user(len(self._messages))
        while flag is not None and place >= 0 and not _is_question(self._messages[place].get("content")):
            place = self._last_user(place)
        if place >= 0:
            namespace[index] = place
            if flag is not None:
                namespace[flag] = False


def _is_question(content: object) -> bool:
    """Text that is no tool's result."""
    return isinstance(content, str) and not (content.startswith("<tool_response>") and content.endswith("</tool_response>"))


def _last_user_of(messages: Sequence[Message]) -> LastUser:
    def last_user(below: int) -> int:
        return next((index for index in range(below - 1, -1, -1) if messages[index].get("role") == "user"), -1)

    return last_user


class _Watch:
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
        return tuple((name, self._plain(value)) for space in self._namespaces for name, value in _members(space).items())

    def _restore(self, values: Spaces) -> None:
        """Set the namespaces to what they were at the message where the run begins."""
        names = [(space, name) for space in self._namespaces for name in _members(space)]
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


def _members(namespace: Namespace) -> dict[str, Any]:
    """Jinja hides them from templates and from us alike."""
    members: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return members
