"""The canonical form of one message, the same for every dialect: what a chat template would see of it, as bytes.

Clients re-send a history that they did not change with other bytes: `content` flips between text and a list of one part,
`cache_control` moves, ids are fresh, arguments are re-serialised (clis.md 0.8). The form keeps roles, texts, calls by name and
parsed arguments, and results; it drops ids, reasoning, cache hints and annotations. Anything unknown is kept as sorted JSON, so
that differing histories never become equal by accident.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType

MEDIA_BYTES = 4096
"""What an image or another media part counts in a message's size: about 1000 tokens, whatever its encoding weighs."""

_TEXT = frozenset({"text", "input_text", "output_text"})
_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning"})
_MEDIA = ("image", "audio", "video", "file", "document")
_CALL_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
_DROPPED = frozenset(
    {
        "cache_control", "id", "status", "annotations", "refusal", "__copilotMessageSource", "signature", "encrypted_content",
        "reasoning_content", "reasoning", "reasoning_details", "logprobs", "is_error", "caller",
    }
)  # fmt: skip
_NULL = b"null"
_QUOTE, _LIST = b'"['
_RawMember = Raw | UnsetType


class Canonical(NamedTuple):
    """`digest`: 16 bytes; `size`: of the form in bytes; `media`: some part is not text."""

    digest: bytes
    size: int
    media: bool


class _Message(msgspec.Struct):
    """A chat or Messages message, or an item of a Responses input."""

    role: Any = None
    type: Any = None
    content: _RawMember = UNSET
    tool_calls: _RawMember = UNSET
    name: Any = None
    arguments: _RawMember = UNSET
    input: _RawMember = UNSET
    output: _RawMember = UNSET


class _Function(msgspec.Struct):
    name: Any = None
    arguments: _RawMember = UNSET


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Part(msgspec.Struct):
    type: Any = None
    text: _RawMember = UNSET
    name: Any = None
    input: _RawMember = UNSET
    content: _RawMember = UNSET


_MESSAGE = msgspec.json.Decoder(_Message)
_TOOL_CALLS = msgspec.json.Decoder(list[_ToolCall] | None)
_PART = msgspec.json.Decoder(_Part)
_LIST_OF_RAW = msgspec.json.Decoder(list[Raw])
_TEXT_VALUE = msgspec.json.Decoder(str)
_ANY = msgspec.json.Decoder()
_SORTED = msgspec.json.Encoder(order="sorted")


class _Form:
    """The bytes of one canonical form as they are gathered. Every piece is tagged and carries its length, so that no two
    sequences of pieces read the same."""

    __slots__ = ("media", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.media = 0

    def add(self, tag: bytes, *texts: bytes) -> None:
        for text in texts:
            self.pieces.append(b"%b%d:%b" % (tag, len(text), text))

    def finish(self) -> Canonical:
        form = b"".join(self.pieces)
        return Canonical(xxhash.xxh3_128_digest(form), len(form) + self.media * MEDIA_BYTES, self.media > 0)


def canonical_message(raw: Raw | bytes) -> Canonical | None:
    """None for what no prompt shows (a reasoning item)."""
    form = _Form()
    try:
        message = _MESSAGE.decode(raw)
        if message.type == "reasoning":
            return None
        _add_message(form, message, raw)
    except (msgspec.DecodeError, RecursionError):
        return _opaque(bytes(raw))
    return form.finish()


def canonical_text(raw: Raw | bytes | str) -> Canonical:
    """A user's text that stands in the place of a message list (Responses `input`)."""
    form = _Form()
    form.add(b"R", b"user")
    text = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else _text(bytes(raw))
    if text:
        form.add(b"t", text)
    return form.finish()


def canonical_system(raw: Raw | bytes) -> Canonical:
    """A system prompt kept apart from the messages: text or a list of parts."""
    form = _Form()
    try:
        _add_content(form, raw)
    except (msgspec.DecodeError, RecursionError):
        return _opaque(bytes(raw))
    return form.finish()


def canonical_json(raw: Raw | bytes) -> Canonical:
    """Any JSON value, keys sorted (tools)."""
    try:
        form = _SORTED.encode(_ANY.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return _opaque(bytes(raw))
    return Canonical(xxhash.xxh3_128_digest(form), len(form), False)


def _opaque(raw: bytes) -> Canonical:
    return Canonical(xxhash.xxh3_128_digest(b"?" + raw), len(raw), False)


def _add_message(form: _Form, message: _Message, raw: Raw | bytes) -> None:
    if message.type == "function_call":
        form.add(b"R", b"assistant")
        form.add(b"c", _word(message.name), _arguments(message.arguments))
    elif message.type == "custom_tool_call":
        form.add(b"R", b"assistant")
        form.add(b"c", _word(message.name), _value(message.input))
    elif message.type in _CALL_RESULTS:
        form.add(b"R", b"tool")
        _add_result(form, message.output)
    elif message.role is None:
        form.add(b"o", _pruned(_ANY.decode(raw)))
    elif message.role == "tool":
        form.add(b"R", b"tool")
        _add_result(form, message.content, message.tool_calls)
    else:
        form.add(b"R", _word(message.role))
        _add_content(form, message.content)
        _add_calls(form, message.tool_calls)


def _add_result(form: _Form, content: _RawMember, calls: _RawMember = UNSET) -> None:
    inner = _Form()
    _add_content(inner, content)
    _add_calls(inner, calls)
    form.add(b"r", b"".join(inner.pieces))
    form.media += inner.media


def _add_content(form: _Form, content: Raw | bytes | UnsetType) -> None:
    if content is UNSET:
        return
    text = bytes(content)
    if text[0] == _QUOTE:
        if len(text) > 2:
            form.add(b"t", _text(text))
    elif text[0] == _LIST:
        for part in _LIST_OF_RAW.decode(text):
            _add_part(form, part)
    elif text != _NULL:
        form.add(b"o", _pruned(_ANY.decode(text)))


def _add_part(form: _Form, raw: Raw) -> None:
    whole = bytes(raw)
    if whole[0] == _QUOTE:
        form.add(b"t", _text(whole))
        return
    part = _PART.decode(whole)
    kind = part.type
    if kind in _TEXT:
        form.add(b"t", b"" if part.text is UNSET else _text(bytes(part.text)))
    elif kind in _REASONING:
        return
    elif kind == "tool_use":
        form.add(b"c", _word(part.name), _arguments(part.input))
    elif kind == "tool_result":
        _add_result(form, part.content)
    elif isinstance(kind, str) and any(name in kind for name in _MEDIA):
        form.media += 1
        form.add(b"m", xxhash.xxh3_128_digest(_pruned(_ANY.decode(whole))))
    else:
        form.add(b"o", _pruned(_ANY.decode(whole)))


def _add_calls(form: _Form, calls: _RawMember) -> None:
    if calls is UNSET:
        return
    for call in _TOOL_CALLS.decode(calls) or ():
        if call.function is None:
            raise msgspec.DecodeError("a tool call without a function")
        form.add(b"c", _word(call.function.name), _arguments(call.function.arguments))


def _text(quoted: bytes) -> bytes:
    """The text of a JSON string, UTF-8."""
    if quoted[0] == _QUOTE and b"\\" not in quoted:
        return quoted[1:-1]
    return quoted if quoted == _NULL else _TEXT_VALUE.decode(quoted).encode()


def _word(value: object) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else _SORTED.encode(value)


def _value(raw: _RawMember) -> bytes:
    return _NULL if raw is UNSET else _text(value) if (value := bytes(raw))[0] == _QUOTE else _SORTED.encode(_ANY.decode(value))


def _arguments(raw: _RawMember) -> bytes:
    """Arguments as sorted JSON, whether they come as an object or as text that holds one; other text as it is."""
    if raw is UNSET:
        return _NULL
    value = bytes(raw)
    if value[0] != _QUOTE:
        return _SORTED.encode(_ANY.decode(value))
    text = _text(value)
    try:
        return _SORTED.encode(_ANY.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return text


def _pruned(value: object) -> bytes:
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in _DROPPED}
    return _SORTED.encode(value)
