"""A chat as its engine renders it, in one go: what every quicker way must agree with."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.profile import Closing, JsonObject, PromptProfile, Settings
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal, sorted_deeply

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Rendered(msgspec.Struct, frozen=True):
    """A prompt's text, and a text that is encoded by itself and whose ids follow (mostly none)."""

    text: str
    appended: str = ""


class Conversation(msgspec.Struct, frozen=True):
    """What a template is given. `moved`: its messages are not those of the body one by one."""

    messages: list[JsonObject]
    settings: Settings
    appended: str
    moved: bool


def render(template: PromptTemplate, profile: PromptProfile, body: Mapping[str, Any]) -> Rendered:
    """A parsed chat body. Raises ValueError (TemplateRefusal among them) where the engine answers 400."""
    form = profile.content_format(template)
    shaped = [profile.message(message, form) for message in body["messages"]]
    return render_conversation(
        template, profile, conversation(template, profile, shaped, read_settings(template, profile, body))
    )


def read_settings(template: PromptTemplate, profile: PromptProfile, body: Mapping[str, Any]) -> Settings:
    """All of a body but its messages, as the template gets it."""
    settings = profile.settings(body)
    if template.sorts_tools and settings.tools:
        return msgspec.structs.replace(settings, tools=sorted_deeply(settings.tools))
    return settings


def conversation(
    template: PromptTemplate, profile: PromptProfile, shaped: Sequence[JsonObject], settings: Settings
) -> Conversation:
    """Messages that were shaped one by one, after what the engine does across them."""
    messages = list(shaped)
    moved = any(profile.rearranges(message, template) for message in messages)
    if moved:
        messages = profile.rearranged(messages)
    closing = profile.closing(messages.pop(), settings) if messages else Closing(None)
    if closing.last is not None:
        messages.append(closing.last)
    return Conversation(messages, settings, closing.appended, moved)


def render_conversation(template: PromptTemplate, profile: PromptProfile, chat: Conversation) -> Rendered:
    """Raises TemplateRefusal."""
    settings = chat.settings
    if continues_in_text(chat):
        return Rendered(_render_continued(template, chat))
    try:
        return Rendered(render_plainly(template, chat.messages, settings, settings.tools), chat.appended)
    except ValueError:
        flat = profile.flat_tools(settings.tools) if settings.tools else None
        if flat is None:
            raise
        return Rendered(render_plainly(template, chat.messages, settings, flat), chat.appended)


def continues_in_text(chat: Conversation) -> bool:
    """Whether the rendered text is cut off within the last message, as transformers does it."""
    return chat.settings.continue_final_message and not chat.settings.add_generation_prompt


def render_plainly(
    template: PromptTemplate, messages: Sequence[Mapping[str, Any]], settings: Settings, tools: Sequence[JsonObject] | None
) -> str:
    return template.render(messages, tools, add_generation_prompt=settings.add_generation_prompt, variables=settings.variables)


def _render_continued(template: PromptTemplate, chat: Conversation) -> str:
    """The text up to the end of the last message's content (transformers' `render_jinja_template`)."""
    messages = copy.deepcopy(chat.messages)
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        part = next((part for part in reversed(content) if "text" in part), None)
        if part is None:
            raise TemplateRefusal("continue_final_message is set but the final message has no text to continue")
        content, part["text"] = part["text"], part["text"] + _TAG
    elif isinstance(content, str):
        last["content"] = content + _TAG
    else:
        raise TemplateRefusal("continue_final_message is set but the final message has no content to continue")
    text = render_plainly(template, messages, chat.settings, chat.settings.tools)
    if content.strip() not in text or _TAG.strip() not in text:
        raise TemplateRefusal("continue_final_message is set but the final message does not appear in the rendered chat")
    at = text.rindex(_TAG.strip())
    return text[:at] if text[at : at + len(_TAG)] == _TAG else text[:at].rstrip()
