"""Log probabilities in SGLang's shapes, made up but constant: the emulated model has no distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_adapters.prompt.tokenizer import Tokenizer

_CHOSEN = -0.125
_NEXT = -2.5


def chat_logprobs(tokenizer: Tokenizer, ids: Sequence[int], top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat reply for these tokens."""
    return {"content": [_chat_token(tokenizer, token, top) for token in ids]}


def _chat_token(tokenizer: Tokenizer, token: int, top: int) -> dict[str, Any]:
    alternatives = [(token + rank) % tokenizer.vocab_size for rank in range(top)]
    return {
        **_token(tokenizer, token, _CHOSEN),
        "top_logprobs": [_token(tokenizer, other, _NEXT * rank or _CHOSEN) for rank, other in enumerate(alternatives)],
    }


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text = tokenizer.decode([token])
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob}


def completion_logprobs(tokenizer: Tokenizer, ids: Sequence[int], top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion for these tokens."""
    return {
        "text_offset": [-1] * len(ids),
        "token_logprobs": [_CHOSEN] * len(ids),
        "tokens": [tokenizer.decode([token]) for token in ids],
        "top_logprobs": [_ranked(tokenizer, token, top) for token in ids] if top else [],
    }


def _ranked(tokenizer: Tokenizer, token: int, top: int) -> dict[str, float]:
    return {tokenizer.decode([(token + rank) % tokenizer.vocab_size]): _NEXT * rank or _CHOSEN for rank in range(top)}
