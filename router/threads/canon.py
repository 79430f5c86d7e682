"""The canonical form of one message, the same for every dialect: what a chat template would see of it, as bytes.

Clients re-send a history that they did not change with other bytes: `content` flips between text and a list of one part,
`cache_control` moves, ids are fresh, arguments are re-serialised (clis.md 0.8). The form keeps roles, texts, calls by name and
parsed arguments, and results; it drops ids, reasoning, cache hints and annotations. Anything unknown is kept as sorted JSON, so
that differing histories never become equal by accident.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType

MEDIA_BYTES = 4096
"""What an image or another media part counts in a message's size: about 1000 tokens, whatever its encoding weighs."""

_BULKY_BYTES = 1 << 20  # JSON above this counts as it is written: to read it would hold the event loop for tens of ms and more
_MANY_PARTS = 10_000
_LONG_TEXT_BYTES = 4 << 20  # longer than any model's context; its escapes are not resolved, which would take as long

_TEXT = ("text", "input_text", "output_text")  # tuples: what they are asked for may be any JSON
_REASONING = ("thinking", "redacted_thinking", "reasoning")
_MEDIA = ("image", "audio", "video", "file", "document")
_CALL_RESULTS = ("function_call_output", "custom_tool_call_output")
_DROPPED = frozenset(
    {
        "cache_control", "id", "status", "annotations", "refusal", "__copilotMessageSource", "signature", "encrypted_content",
        "reasoning_content", "reasoning", "reasoning_details", "logprobs", "is_error", "caller",
    }
)  # fmt: skip
_NULL = b"null"
_QUOTE = 34
_MAY_BE_OBJECT = frozenset({b"{", b" ", b"\t", b"\r", b"\n"})
_RawMember = Raw | UnsetType
_Content = str | list[Raw] | dict[str, Raw] | int | float | bool | None


class Canonical(msgspec.Struct, frozen=True, gc=False):
    """`digest`: 16 bytes; `size`: of the form in bytes; `media`: some part is not text."""

    digest: bytes
    size: int
    media: bool


class _Message(msgspec.Struct):
    """A chat or Messages message, or an item of a Responses input."""

    role: Any = None
    type: Any = None
    content: _Content = None
    tool_calls: _RawMember = UNSET
    name: Any = None
    arguments: _RawMember = UNSET
    input: _RawMember = UNSET
    output: _Content = None


class _Unread(msgspec.Struct):
    """The same, its content left as it is written."""

    role: Any = None
    type: Any = None
    content: _RawMember = UNSET
    tool_calls: _RawMember = UNSET


class _Function(msgspec.Struct):
    name: Any = None
    arguments: _RawMember = UNSET


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Part(msgspec.Struct):
    type: Any = None
    text: Any = ""
    name: Any = None
    input: _RawMember = UNSET
    content: _Content = None


_MESSAGE = msgspec.json.Decoder(_Message)
_UNREAD = msgspec.json.Decoder(_Unread)
_TOOL_CALLS = msgspec.json.Decoder(list[_ToolCall] | None)
_PART = msgspec.json.Decoder(_Part)
_CONTENT: msgspec.json.Decoder[_Content] = msgspec.json.Decoder(_Content)
_ANY = msgspec.json.Decoder()
_SORTED = msgspec.json.Encoder(order="sorted")


class _Form:
    """The bytes of one canonical form as they are gathered. Every piece is tagged and carries its length, so that no two
    sequences of pieces read the same."""

    __slots__ = ("media", "pieces", "unread_bytes")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.media = 0
        self.unread_bytes = 0  # of parts that stand in `pieces` by their hash

    def add(self, tag: bytes, *texts: bytes) -> None:
        for text in texts:
            self.pieces.append(b"%b%d:%b" % (tag, len(text), text))

    def finish(self) -> Canonical:
        form = b"".join(self.pieces)
        size = len(form) + self.unread_bytes + self.media * MEDIA_BYTES
        return Canonical(xxhash.xxh3_128_digest(form), size, self.media > 0)


def canonical_message(raw: Raw | bytes) -> Canonical | None:
    """None for what no prompt shows (a reasoning item)."""
    if bytes(memoryview(raw)[:1]) not in _MAY_BE_OBJECT:
        return _opaque(bytes(raw))  # where refusing it by decoding would cost ten times as much
    try:
        if len(memoryview(raw)) > _LONG_TEXT_BYTES and (long := _long_text(raw)) is not None:
            return long
        message = _MESSAGE.decode(raw)
        if message.type == "reasoning":
            return None
        if message.type is None and message.tool_calls is UNSET and (plain := _plain(message)) is not None:
            return plain
        form = _Form()
        _add_message(form, message, raw)
    except (msgspec.DecodeError, RecursionError):
        return _opaque(bytes(raw))
    return form.finish()


def _long_text(raw: Raw | bytes) -> Canonical | None:
    """The form of a role and a text that counts as it is written; None for anything else."""
    message = _UNREAD.decode(raw)
    role, content = message.role, message.content
    if content is UNSET or message.tool_calls is not UNSET or message.type is not None or type(role) is not str:
        return None
    text = memoryview(content)
    if text[0] != _QUOTE or len(text) <= _LONG_TEXT_BYTES:
        return None
    digest = xxhash.xxh3_128(b"w%d:%b" % (len(role), role.encode()))
    digest.update(text)
    return Canonical(digest.digest(), len(text), False)


def _plain(message: _Message) -> Canonical | None:
    """The form of a role and a text, which most messages are, without gathering pieces. Equal to what `_Form` would give."""
    content, role = message.content, message.role
    if not content or type(content) is not str or type(role) is not str or not role.isascii():
        return None
    text = content.encode()
    piece = b"t%d:%b" % (len(text), text)
    form = b"R4:toolr%d:%b" % (len(piece), piece) if role == "tool" else b"R%d:%b%b" % (len(role), role.encode(), piece)
    return Canonical(xxhash.xxh3_128_digest(form), len(form), False)


def canonical_text(text: str) -> Canonical:
    """A user's text that stands in the place of a message list (Responses `input`)."""
    form = _Form()
    form.add(b"R", b"user")
    _add_content(form, text)
    return form.finish()


def canonical_system(raw: Raw | bytes) -> Canonical:
    """A system prompt kept apart from the messages: text or a list of parts."""
    form = _Form()
    try:
        _add_content(form, _CONTENT.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return _opaque(bytes(raw))
    return form.finish()


def canonical_json(raw: Raw | bytes) -> Canonical:
    """Any JSON value, keys sorted (tools)."""
    if _is_bulky(raw):
        return _opaque(bytes(raw))
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
        form.add(b"c", _word(message.name), _word(_ANY.decode(message.input) if message.input is not UNSET else None))
    elif message.type in _CALL_RESULTS:
        form.add(b"R", b"tool")
        _add_result(form, message.output)
    elif message.role is None:
        form.add(b"o", _unknown(raw))
    elif message.role == "tool":
        form.add(b"R", b"tool")
        _add_result(form, message.content, message.tool_calls)
    else:
        form.add(b"R", _word(message.role))
        _add_content(form, message.content)
        _add_calls(form, message.tool_calls)


def _add_result(form: _Form, content: _Content, calls: _RawMember = UNSET) -> None:
    inner = _Form()
    _add_content(inner, content)
    _add_calls(inner, calls)
    form.add(b"r", b"".join(inner.pieces))
    form.media += inner.media
    form.unread_bytes += inner.unread_bytes


def _add_content(form: _Form, content: _Content) -> None:
    """Nothing, null, an empty text and an empty list are the same; a text is the same as a list of one text part."""
    if isinstance(content, str):
        if content:
            form.add(b"t", content.encode())
    elif isinstance(content, list) and len(content) > _MANY_PARTS:
        form.add(b"o", b",".join(map(bytes, content)))
    elif isinstance(content, list):
        for part in content:
            _add_part(form, part)
    elif content is not None:
        form.add(b"o", _SORTED.encode(content))


def _add_part(form: _Form, raw: Raw) -> None:
    if len(memoryview(raw)) > _LONG_TEXT_BYTES:
        _add_long_part(form, raw)
        return
    whole = bytes(raw)
    if whole[0] == _QUOTE:
        form.add(b"t", _word(_ANY.decode(whole)))
        return
    part = _PART.decode(whole)
    kind = part.type
    if kind in _TEXT:
        form.add(b"t", _word(part.text))
    elif kind in _REASONING:
        return
    elif kind == "tool_use":
        form.add(b"c", _word(part.name), _arguments(part.input))
    elif kind == "tool_result":
        _add_result(form, part.content)
    elif _is_media(kind):
        form.media += 1
        form.add(b"m", xxhash.xxh3_128_digest(_pruned(_ANY.decode(whole))))
    else:
        form.add(b"o", _unknown(whole))


def _add_long_part(form: _Form, raw: Raw) -> None:
    """It counts as it is written, by its hash."""
    kind = None if memoryview(raw)[0] == _QUOTE else _UNREAD.decode(raw).type
    if kind in _REASONING:
        return
    digest = xxhash.xxh3_128_digest(raw)
    if _is_media(kind):
        form.media += 1
        form.add(b"m", digest)
    else:
        form.unread_bytes += len(memoryview(raw))
        form.add(b"w", digest)


def _is_media(kind: object) -> bool:
    return isinstance(kind, str) and any(name in kind for name in _MEDIA)


def _add_calls(form: _Form, calls: _RawMember) -> None:
    if calls is UNSET:
        return
    if _is_bulky(calls):
        form.add(b"o", bytes(calls))
        return
    for call in _TOOL_CALLS.decode(calls) or ():
        if call.function is None:
            raise msgspec.DecodeError("a tool call without a function")
        form.add(b"c", _word(call.function.name), _arguments(call.function.arguments))


def _word(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else _SORTED.encode(value)


def _arguments(raw: _RawMember) -> bytes:
    """Arguments as sorted JSON, whether they come as an object or as text that holds one; other text as it is."""
    if raw is not UNSET and _is_bulky(raw):
        return bytes(raw)
    value = None if raw is UNSET else _ANY.decode(raw)
    if not isinstance(value, str):
        return _SORTED.encode(value)
    try:
        return _SORTED.encode(_ANY.decode(value))
    except (msgspec.DecodeError, RecursionError):
        return value.encode()


def _unknown(raw: Raw | bytes) -> bytes:
    return bytes(raw) if _is_bulky(raw) else _pruned(_ANY.decode(raw))


def _is_bulky(raw: Raw | bytes) -> bool:
    return len(memoryview(raw)) > _BULKY_BYTES


def _pruned(value: object) -> bytes:
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in _DROPPED}
    return _SORTED.encode(value)
