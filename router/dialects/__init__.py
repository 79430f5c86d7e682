"""Client protocols by path. `/v1/messages/count_tokens` and `/v1/responses/{id}` are not hot and pass by another way."""

from __future__ import annotations

from router.dialects.chat import Chat
from router.dialects.completions import Completions
from router.dialects.dialect import Dialect, DialectName, EventKind
from router.dialects.messages import Messages
from router.dialects.responses import Responses

CHAT = Chat()
COMPLETIONS = Completions()
RESPONSES = Responses()
MESSAGES = Messages()

DIALECTS: dict[str, Dialect] = {d.path: d for d in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}

__all__ = ["CHAT", "COMPLETIONS", "DIALECTS", "MESSAGES", "RESPONSES", "Dialect", "DialectName", "EventKind"]
