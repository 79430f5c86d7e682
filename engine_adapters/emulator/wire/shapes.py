"""What types the members of a request must have, dialect by dialect: the part of SGLang's pydantic models that is read here.

Members that are not named may be anything. Whether what is named makes sense is for the dialects to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine_adapters.emulator.wire.errors import BadRequest, invalid

Object = dict[str, Any]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
Room = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Top = Annotated[int, Meta(ge=0, le=128)]
Samples = Annotated[float, Meta(ge=1, le=128)]  # that it is whole is looked at where it is read


class Common(msgspec.Struct):
    """What every dialect reads alike; lists have one entry a prompt."""

    cache_salt: str | list[str | None] | None = None
    extra_key: str | list[str | None] | None = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: Port | list[Port | None] | None = None
    bootstrap_room: Room | list[Room | None] | None = None
    n: Samples | None = None
    stream_options: Object | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | Object | None = None
    description: str | None = None
    parameters: Object | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Choice(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | list[Object] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    tools: list[_Call] | None = None


class _Schema(msgspec.Struct):
    schema: Object | None = None


class _Format(msgspec.Struct):
    type: str | None = None
    schema: Object | None = None
    json_schema: _Schema | None = None


class Chat(Common):
    messages: list[_Message] | None = None
    tools: list[_Call] | None = None
    tool_choice: str | _Choice | None = None
    response_format: _Format | None = None
    input_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    top_logprobs: Top | None = None
    chat_template_kwargs: Object | None = None


class Completion(Common):
    prompt: str | list[Any] | None = None  # of texts, ids, or lists of ids: looked at more closely by `prompts`
    logprobs: Top | None = None


class _Sampling(msgspec.Struct):
    n: Samples | None = None


class Generate(Common):
    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    top_logprobs_num: Top | None = None
    logprob_start_len: int = -1


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: str | list[Object] | None = None
    name: str | None = None
    call_id: str | None = None


class _ResponsesTool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None
    format: Object | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class Responses(Common):
    input: str | list[_Item] | None = None
    instructions: str | None = None
    model: str | None = None
    tools: list[_ResponsesTool] | None = None
    tool_choice: str | _Choice | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    chat_template_kwargs: Object | None = None


class _Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    content: str | list[Object] | None = None


class _Turn(msgspec.Struct):
    content: str | list[_Block] | None = None


class _MessagesTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None


class _OutputConfig(msgspec.Struct):
    format: _Schema | None = None
    effort: str | None = None


class Messages(Common):
    model: str | None = None
    system: str | list[_Block] | None = None
    messages: list[_Turn] | None = None
    tools: list[_MessagesTool] | None = None
    output_config: _OutputConfig | None = None


def check(request: Mapping[str, Any], shape: type[Common]) -> None:
    """Raises BadRequest, naming the member."""
    try:
        msgspec.convert(request, shape)
    except msgspec.ValidationError as error:
        raise invalid("type_error", ("body",), str(error)) from error


def prompts(value: Any, where: str) -> list[str | list[int]]:
    """A prompt member as a list of prompts: text, texts, token ids or lists of token ids. Raises BadRequest."""
    first = value[0] if isinstance(value, list) and value else value
    shape = list[TokenId] if isinstance(first, int) else list[list[TokenId]] if isinstance(first, list) else list[str]
    try:
        found: Any = msgspec.convert([value] if isinstance(value, str) else value, shape)
    except msgspec.ValidationError as error:
        raise invalid("string_type", ("body", where), str(error)) from error
    several: list[str | list[int]] = [found] if isinstance(first, int) else found
    if not several or not all(several):
        raise BadRequest("Prompt cannot be empty")
    return several
