"""Runs a rewritten chat template over a conversation, from its beginning or from one of its messages.

A run that begins at message j is right if what lies before j would come out again as it did: the template's head prints the
same and leaves its variables as they were, no iteration before j looked at a message that has changed since or at how many
there are, and the loop's namespaces stand as they stood there. All of that is noted in a full run and compared in a later one;
a template is a pure function of what it reads, so nothing else can differ (the clock is read through us, as a change).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.utils import Namespace

from engine_adapters.prompt import loop_source
from engine_adapters.prompt.loop_watch import LoopRun, LoopTrace, Watch, members
from engine_adapters.prompt.message_view import LastUser, Message, MessageView
from engine_adapters.prompt.scan_idioms import LOOK
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal, new_environment


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
        watch = Watch(self._shape, start, start_chars, before, tools, self._now)
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
        if flag is not None and not members(namespace).get(flag):
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
