"""The parts of a request that every OpenAI-like dialect of SGLang reads the same way: ids, lengths, salts, the PD room."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.reply.plan import ReplyRequest, ReplyStyle, plan_reply
from engine_adapters.emulator.wire.errors import BadRequest, invalid
from engine_adapters.emulator.worker.job import Bootstrap, Job
from engine_adapters.prompt.tokenizer import Tokenizer
from kvtier.hashing.sglang import pack

_OVERRIDES: dict[str, Callable[[str], Any]] = {
    "rid": str,
    "bootstrap_host": str,
    "bootstrap_port": int,
    "bootstrap_room": int,
}


class Sampling:
    """Turns token ids and a body's common members into jobs."""

    def __init__(self, params: EngineParams, style: ReplyStyle, tokenizer: Tokenizer) -> None:
        self._params = params
        self._style = style
        self._tokenizer = tokenizer
        self.context_tokens = params.context_tokens

    def jobs(
        self,
        body: Mapping[str, Any],
        prompts: Sequence[tuple[int, ...]],
        *,
        samples: int,
        max_tokens: int | None,
        wish: ReplyRequest,
    ) -> tuple[Job, ...]:
        """One job for each prompt and sample, prompt by prompt. Raises BadRequest when the ids do not fit the batch."""
        rids = _rids(body.get("rid"), len(prompts) * samples)
        made = []
        for number, prompt in enumerate(prompts):
            refusal = self._refusal(len(prompt), max_tokens)
            limit = self._limit(len(prompt), max_tokens)
            bootstrap = self._bootstrap(body, number)
            for sample in range(samples):
                index = number * samples + sample
                wanted = _wish_for(wish, prompt, limit if refusal is None else 1, sample)
                plan = plan_reply(wanted, self._style, self._tokenizer)
                made.append(
                    Job(
                        rid=rids[index],
                        index=index,
                        prompt_ids=prompt,
                        plan=plan,
                        max_tokens=limit,
                        cache_salt=_nth(body.get("cache_salt"), number),
                        extra_key=_nth(body.get("extra_key"), number),
                        bootstrap=bootstrap,
                        samples=samples,
                        refusal=refusal,
                    )
                )
        return tuple(made)

    def _refusal(self, prompt_tokens: int, max_tokens: int | None) -> str | None:
        """SGLang's length checks."""
        context = self._params.context_tokens
        if prompt_tokens >= context:
            return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
        if max_tokens is not None and max_tokens + prompt_tokens > context:
            return (
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
                f"total of {max_tokens + prompt_tokens} tokens: {prompt_tokens} tokens from the input messages and "
                f"{max_tokens} tokens for the completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit."
            )
        if prompt_tokens >= self._longest - 5:
            return (
                f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({self._longest - 5} tokens). Use a "
                "shorter input or enable --allow-auto-truncate."
            )
        return None

    @property
    def _longest(self) -> int:
        """Tokens of the longest sequence that context and KV cache allow."""
        return min(self._params.context_tokens, self._params.kv_tokens) - 1

    def _limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """How many tokens a reply may have."""
        room = max(self._longest - prompt_tokens - 1, 1)
        return room if max_tokens is None else max(min(max_tokens, room), 1)

    def _bootstrap(self, body: Mapping[str, Any], number: int) -> Bootstrap | None:
        room = _nth_room(body.get("bootstrap_room"), number)
        if self._params.role is EngineRole.UNIFIED or room is None:
            return None
        return Bootstrap(_nth(body.get("bootstrap_host"), number), _nth(body.get("bootstrap_port"), number), int(room))


def wanted_schema(response_format: Any) -> Any:
    """The JSON schema that a reply must satisfy, from chat's or Responses' way of asking; None for free text."""
    if not isinstance(response_format, Mapping):
        return None
    if response_format.get("type") == "json_object":
        return {"type": "object"}
    if response_format.get("type") != "json_schema":
        return None
    return response_format.get("schema") or (response_format.get("json_schema") or {}).get("schema")


def with_overrides(request: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The request after SGLang's header overrides, by which a router may leave a body alone."""
    found = dict(request)
    for member, cast in _OVERRIDES.items():
        header = f"x-override-{member.replace('_', '-')}"
        value = headers.get(header)
        if value is None:
            continue
        try:
            found[member] = cast(value)
        except ValueError as error:
            raise BadRequest(f"invalid {header} header {value!r}: {error}", "400") from error
    return found


def integer(body: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    """A member that must be a whole number if it is there."""
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
        raise invalid("int_type", ("body", key), "Input should be a valid integer", value)
    return int(value)


def _wish_for(wish: ReplyRequest, prompt: tuple[int, ...], limit: int, sample: int) -> ReplyRequest:
    return msgspec.structs.replace(wish, prompt_key=zlib.crc32(pack(prompt)), max_tokens=limit, choice=sample)


def _rids(rid: Any, count: int) -> list[str]:
    if isinstance(rid, list) and len(rid) == count:
        return [str(one) for one in rid]
    if isinstance(rid, list):
        raise BadRequest("The specified rids length mismatch with the batch_size for batch processing.")
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    return [str(rid)] if count == 1 else [f"{rid}_{index}" for index in range(count)]


def _nth(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return value[number] if number < len(value) else None
    return value or None


def _nth_room(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return value[number] if number < len(value) else None
    return None if value is None else value + number
