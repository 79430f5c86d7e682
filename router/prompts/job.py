"""One turn's derived prompt on its way: what was asked, what came of it, and what the engine said to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router.prompts.reader import Ask, Prompt
from router.prompts.trust import Level, Trust


@dataclass(slots=True, eq=False)
class PromptJob:
    ask: Ask
    trust: Trust
    level: Level
    task: asyncio.Task[None] | None = None
    prompt: Prompt | None = None
    refusal: str = ""  # why none could be derived
    wants_ids: bool = False  # they are to be sent along
    ids: bytes | None = None  # all token ids as a JSON array
    counted: int | None = None  # the prompt's tokens in the engine's reply; 0 = it did not say
    forwarded: bool = False  # the engine was given our ids: its count says nothing

    def take_ids(self) -> bytes | None:
        """The ids to be sent, if they are there by now."""
        self.forwarded |= self.ids is not None
        return self.ids
