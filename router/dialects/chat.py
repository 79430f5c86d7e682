"""OpenAI chat completions."""

from __future__ import annotations

from router.dialects.dialect import DialectName
from router.dialects.openai_stream import OpenAIStream


class Chat(OpenAIStream):
    name = DialectName.CHAT
    path = "/v1/chat/completions"
    message_key = "messages"
    system_key = None
    requires_messages = True
