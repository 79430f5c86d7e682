"""What a reply's `usage` object says, in the shapes of the four APIs: chat, completions, responses and messages.

Pure. An object that cannot be read says nothing (`ReplyFacts()`): usage only corrects predictions, it must never fail a reply.
"""

from __future__ import annotations

import msgspec

from engine_adapters.base import ReplyFacts
from engine_adapters.counts import count


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    cached_tokens: int | None = None  # Moonshot's place for it
    prompt_cache_hit_tokens: int | None = None  # DeepSeek's
    input_tokens: int | None = None  # responses, messages
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None  # responses
    cache_read_input_tokens: int | None = None  # messages: not part of input_tokens there
    cache_creation_input_tokens: int | None = None


_DECODER = msgspec.json.Decoder(_Usage)


def read_usage(raw: bytes) -> ReplyFacts:
    """`raw` is the JSON of one usage object; token counts in the reply are whole-prompt counts for every API."""
    try:
        usage = _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return ReplyFacts()
    cached = _cached(usage)
    return ReplyFacts(count(_prompt(usage)), count(_completion(usage)), None if cached is None else count(cached))


def _prompt(usage: _Usage) -> int:
    if usage.prompt_tokens is not None:
        return usage.prompt_tokens
    # The messages API counts only what was neither read from nor written to the cache as input.
    return (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def _completion(usage: _Usage) -> int:
    return usage.completion_tokens or usage.output_tokens or 0


def _cached(usage: _Usage) -> int | None:
    for details in (usage.prompt_tokens_details, usage.input_tokens_details):
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
    for tokens in (usage.cached_tokens, usage.prompt_cache_hit_tokens, usage.cache_read_input_tokens):
        if tokens is not None:
            return tokens
    return None
