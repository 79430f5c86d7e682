"""`/tokenize` and `/v1/tokenize`: token ids of a text or of a chat as the engine would render it."""

from __future__ import annotations

from typing import Any

from engine_adapters.emulator.wire.chat import ChatDialect
from engine_adapters.emulator.wire.errors import invalid, parse_object
from engine_adapters.prompt.tokenizer import Tokenizer


def tokenize(body: bytes, chat: ChatDialect, tokenizer: Tokenizer, context_tokens: int) -> dict[str, Any]:
    """Raises BadRequest."""
    request = parse_object(body)
    prompt, specials = request.get("prompt"), request.get("add_special_tokens", True) is not False
    tokens: list[Any]
    count: int | list[int]
    if request.get("messages") is not None:
        tokens = list(chat.prompt_ids(request))
        count = len(tokens)
    elif isinstance(prompt, str):
        tokens = tokenizer.encode(prompt, add_special_tokens=specials)
        count = len(tokens)
    elif isinstance(prompt, list) and all(isinstance(one, str) for one in prompt):
        tokens = [tokenizer.encode(one, add_special_tokens=specials) for one in prompt]
        count = [len(ids) for ids in tokens]
    else:
        raise invalid("missing", ("body",), "prompt or messages is required")
    return {"tokens": tokens, "count": count, "max_model_len": context_tokens}
