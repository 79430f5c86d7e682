"""What an engine makes of a chat body before its template sees it: one profile an engine and version.

A profile works message by message, so that a long conversation is not gone through again for one new message; what some
engines do across messages is said apart. It knows no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine_adapters.prompt.kimi_tokenizer import LongTexts
from engine_adapters.prompt.template import ContentFormat, PromptTemplate

JsonObject = dict[str, Any]


class Settings(msgspec.Struct, frozen=True):
    """What of a body, beside its messages, shapes the prompt, as the template gets it."""

    tools: list[JsonObject] | None = None
    variables: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class Closing(msgspec.Struct, frozen=True):
    """How a conversation ends: its last message as the template gets it, or none, and a text whose ids follow the prompt's."""

    last: JsonObject | None
    appended: str = ""


class PromptProfile(Protocol):
    """Stateless. Raises ValueError (TemplateRefusal among them) where the engine would answer 400."""

    @property
    def name(self) -> str:
        """Engine and version, as people write them."""

    @property
    def long_texts(self) -> LongTexts:
        """How the engine hands long texts to Kimi's tokenizer."""

    def content_format(self, template: PromptTemplate) -> ContentFormat:
        """Whether message content goes to this template as text or as parts."""

    def message(self, message: Mapping[str, Any], content_format: ContentFormat) -> JsonObject:
        """One message of the body as the template gets it."""

    def settings(self, body: Mapping[str, Any]) -> Settings:
        """Everything else of the body; `messages` need not be in it."""

    def closing(self, last: JsonObject, settings: Settings) -> Closing:
        """The last message, shaped already, may be treated apart."""

    def rearranges(self, message: JsonObject, template: PromptTemplate) -> bool:
        """Whether this message, shaped already, makes the engine rearrange the whole conversation."""

    def rearranged(self, messages: Sequence[JsonObject]) -> list[JsonObject]:
        """The conversation after that."""

    def flat_tools(self, tools: Sequence[JsonObject]) -> list[JsonObject] | None:
        """Tools in the form that is tried when the template refuses the usual one; None = it is not tried."""
