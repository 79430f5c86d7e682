"""OpenAI text completions: no messages, a prompt of text, of token ids, or a batch of either."""

from __future__ import annotations

from router.dialects.dialect import DialectName
from router.dialects.openai_stream import OpenAIStream


class Completions(OpenAIStream):
    name = DialectName.COMPLETIONS
    path = "/v1/completions"
    message_key = "prompt"
    system_key = None
    requires_messages = False
