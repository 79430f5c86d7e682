"""Which members of a request body the gateway reads, and how each dialect spells them. Everything else stays raw bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.dialects.dialect import Dialect, DialectName

# Scalars are decoded untyped: the engine, not the gateway, is the judge of `n: "two"`. A conversation of a wrong type must
# decode too, since a later duplicate key may replace it.
Conversation = list[Raw] | dict[str, Raw] | str | int | float | bool | None


class Members(msgspec.Struct):
    """The members of every dialect that routing may need. `conversation` and `system` are named by the dialect."""

    model: Any = UNSET
    stream: Any = UNSET
    stream_options: Raw | UnsetType = UNSET
    n: Any = UNSET
    max_tokens: Any = UNSET
    max_completion_tokens: Any = UNSET
    max_output_tokens: Any = UNSET
    prompt_cache_key: Any = UNSET
    metadata: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    previous_response_id: Any = UNSET
    cache_salt: Any = UNSET
    extra_key: Any = UNSET
    lora_path: Any = UNSET
    return_cached_tokens_details: Any = UNSET
    echo: Any = UNSET
    logprobs: Any = UNSET
    system: Raw | UnsetType = UNSET
    conversation: Any = UNSET


class Shape:
    """One dialect's body: its decoders and which reserved keys it holds. Built once per process.

    `decoder` reads a whole body. `raw_decoder` keeps every member raw, for the part of a body before its conversation.
    `extra` adds one list member to `decoder`, as attribute name to body key.
    """

    __slots__ = ("_reserved_of", "decoder", "dialect", "keys", "raw_decoder", "reserved_keys")

    def __init__(self, dialect: Dialect, reserved: Iterable[str], extra: dict[str, str] | None = None) -> None:
        self.dialect = dialect
        self.reserved_keys = tuple(sorted(set(reserved) - set(Members.__struct_fields__)))
        attributes = [f"reserved_{i}" for i in range(len(self.reserved_keys))]
        names = _named(dialect) | dict(zip(attributes, self.reserved_keys, strict=True)) | (extra or {})
        fields: list[tuple[str, Any, Any]] = [("conversation", _conversation_type(dialect), UNSET)]
        fields += [("system", _RAW, UNSET)] if dialect.system_key else []
        fields += [(attribute, _RAW, UNSET) for attribute in attributes]
        fields += [(attribute, list[Raw], []) for attribute in extra or ()]
        self.decoder: msgspec.json.Decoder[Members] = msgspec.json.Decoder(
            msgspec.defstruct("Body", fields, bases=(Members,), rename=names)
        )
        read = [name for name in Members.__struct_fields__ if name in names or name not in ("conversation", "system")]
        self.keys = {name: names.get(name, name) for name in (*read, *attributes)}
        self.raw_decoder: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(
            msgspec.defstruct("RawBody", [(name, _RAW, UNSET) for name in self.keys], rename=self.keys)
        )
        self._reserved_of = _getter(attributes)

    def reserved_found(self, members: Members) -> tuple[str, ...]:
        values = self._reserved_of(members)
        if values.count(UNSET) == len(values):
            return ()
        return tuple(key for key, value in zip(self.reserved_keys, values, strict=True) if value is not UNSET)


_RAW: Any = Raw | UnsetType


def _named(dialect: Dialect) -> dict[str, str]:
    names = {"conversation": dialect.message_key}
    if dialect.system_key:
        names["system"] = dialect.system_key
    return names


def _conversation_type(dialect: Dialect) -> Any:
    # A prompt may be 400 KB of text: it is never decoded.
    return _RAW if dialect.name is DialectName.COMPLETIONS else Conversation | UnsetType


def _getter(attributes: list[str]) -> Callable[[Members], tuple[Any, ...]]:
    if not attributes:
        return lambda members: ()
    if len(attributes) == 1:
        return lambda members: (getattr(members, attributes[0]),)
    get: Callable[[Members], tuple[Any, ...]] = operator.attrgetter(*attributes)
    return get
