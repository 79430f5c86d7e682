"""Reads what shapes a prompt from the bytes of a chat body, and of a body that begins like the one before only its end.

The messages stay bytes until someone looks into them. A body's beginning, up to behind its last message, is known by its
digest; as that lies within the list of messages, what it holds is the same in every body that begins so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType

from engine_adapters.prompt.body_prefix import SPAN_WORDS, BodyPrefix
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.rope import Rope

ListName = Literal["messages", "input"]
_LISTS: dict[ListName, re.Pattern[bytes]] = {
    "messages": re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\['),
    "input": re.compile(rb'"input"[ \t\r\n]*:[ \t\r\n]*\['),
}
_SEPARATOR = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_NULL = b"null"
OWN_IDS = "the client brings its own token ids"
_ROLE = re.compile(rb'\{[ \t\r\n]*"role"[ \t\r\n]*:[ \t\r\n]*"(system|user|assistant|tool|developer)"')
_ROLE_KEY = b'"role"'


class _Members(msgspec.Struct):
    """Every member that a profile reads."""

    messages: list[Raw] | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET
    reasoning_effort: Raw | UnsetType = UNSET
    reasoning: Raw | UnsetType = UNSET
    add_generation_prompt: Raw | UnsetType = UNSET
    continue_final_message: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    input_ids: Raw | None = None
    system: Raw | UnsetType = UNSET  # of Anthropic's protocol, as the next two
    thinking: Raw | UnsetType = UNSET
    output_config: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET  # of Responses


class _ItemMembers(_Members):
    """Of a Responses body, whose conversation is in `input`."""

    messages: list[Raw] | None = msgspec.field(default=None, name="input")


_DECODERS: dict[ListName, msgspec.json.Decoder[_Members]] = {
    "messages": msgspec.json.Decoder(_Members),
    "input": msgspec.json.Decoder(_ItemMembers),
}
_CHAT_NAMES = (
    "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "reasoning", "add_generation_prompt",
    "continue_final_message", "documents",
)  # fmt: skip


class TalkBody(Protocol):
    """What a model needs to know of a body: `ChatBody`, or one of another protocol read as a chat (`DialectBody`)."""

    @property
    def prefix(self) -> BodyPrefix:
        """To be remembered for the next body."""

    @property
    def same(self) -> int:
        """So many messages at the beginning are those of the body before."""

    @property
    def count(self) -> int:
        """Messages."""

    def role(self, index: int) -> str | None: ...

    def message(self, index: int) -> dict[str, Any]: ...

    def first_key(self, hasher: Hasher) -> bytes: ...

    def keys(self, hasher: Hasher, start: int = 0) -> array[int]: ...

    def head_key(self, hasher: Hasher) -> bytes: ...

    def members(self) -> Mapping[str, Any]: ...


class ChatBody(msgspec.Struct, frozen=True):
    """`same`: so many messages at the beginning are, byte for byte, those of the body before."""

    text: bytes
    settings: tuple[tuple[str, bytes], ...]  # members beside the messages, as sent
    prefix: BodyPrefix
    same: int

    @property
    def count(self) -> int:
        """Messages."""
        return len(self.prefix.spans)

    def raw(self, index: int) -> memoryview:
        start, end = self.prefix.spans.row(index)
        return memoryview(self.text)[start:end]

    def role(self, index: int) -> str | None:
        """A usual role that the message begins with and names but once; None = it must be parsed to know."""
        start, end = self.prefix.spans.row(index)
        match = _ROLE.match(self.text, start)
        if match is None or self.text.find(_ROLE_KEY, match.end(), end) >= 0:
            return None
        return match.group(1).decode()

    def message(self, index: int) -> dict[str, Any]:
        """Message `index`, parsed. Raises ValueError when it is no object."""
        message = self.value(index)
        if "role" not in message:
            raise ValueError(f"message {index} must be an object with a role")
        return message

    def value(self, index: int) -> dict[str, Any]:
        """As `message`, which may have no role."""
        try:
            value = msgspec.json.decode(self.raw(index))
        except msgspec.DecodeError as error:
            raise ValueError(f"message {index} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"message {index} must be an object with a role")  # noqa: TRY004  a 400
        return value

    def first_key(self, hasher: Hasher) -> bytes:
        """Key of the first message's bytes."""
        return hasher.key(self.raw(0))

    def keys(self, hasher: Hasher, start: int = 0) -> array[int]:
        """Keys of the messages' bytes from number `start` on, four numbers each."""
        keys = array("I")
        for begin, end in self._spans(start):
            keys.frombytes(hasher.key(memoryview(self.text)[begin:end]))
        return keys

    def head_key(self, hasher: Hasher) -> bytes:
        """Digest of all that shapes the prompt beside its messages."""
        return hasher.key(b"\0".join(part for name, raw in self.settings for part in (name.encode(), raw)))

    def members(self) -> Mapping[str, Any]:
        """What `head_key` stands for, parsed."""
        return {name: msgspec.json.decode(raw) for name, raw in self.settings}

    def _spans(self, start: int) -> Iterator[tuple[int, int]]:
        numbers = iter(self.prefix.spans.slice(start, self.count))
        return zip(numbers, numbers, strict=True)


def read_body(
    text: bytes,
    before: BodyPrefix | None,
    hasher: Hasher,
    names: tuple[str, ...] = _CHAT_NAMES,
    list_name: ListName = "messages",
) -> ChatBody:
    """`names`: of the members that shape the prompt beside the messages. Raises ValueError for what is no chat body."""
    return _BodyReader(text, hasher, names, list_name).read(before)


def body_of(chat: Mapping[str, Any]) -> bytes:
    """The body of a chat that was made from another dialect. Raises ValueError for what is no JSON text."""
    try:
        return msgspec.json.encode(chat)
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"the chat cannot be written as JSON: {error}") from error


class _BodyReader:
    def __init__(self, text: bytes, hasher: Hasher, names: tuple[str, ...], list_name: ListName) -> None:
        self._text = text
        self._hasher = hasher
        self._names = names
        self._list = _LISTS[list_name]
        self._decoder = _DECODERS[list_name]

    def read(self, before: BodyPrefix | None) -> ChatBody:
        running = self._hasher.running()
        if before is not None and len(self._text) >= before.length:
            running.update(memoryview(self._text)[: before.length])
            if running.digest() == before.digest:
                body = self._read_rest(before, running)
                if body is not None:
                    return body
        return self._read_whole()

    def _read_rest(self, before: BodyPrefix, running: xxhash.xxh3_128) -> ChatBody | None:
        """Only what follows the known beginning, which `running` has taken; None where another list of messages follows, which
        then is the one that counts."""
        text, opening = self._text, before.list_start + 1
        try:
            members = self._decoder.decode(b"".join((memoryview(text)[:opening], _NULL, memoryview(text)[before.length :])))
        except msgspec.DecodeError:
            return None
        found = members.messages
        if not found or bytes(found[0]) != _NULL:
            return None
        spans = _spans_of(text, before.length, found[1:])
        if spans is None:
            return None
        rows = before.spans.appended(spans)
        running.update(memoryview(text)[before.length : _end(rows)])
        prefix = BodyPrefix(_end(rows), running.digest(), before.list_start, rows)
        return self._body(members, prefix, len(before.spans))

    def _read_whole(self) -> ChatBody:
        text = self._text
        try:
            members = self._decoder.decode(text)
        except msgspec.DecodeError as error:
            raise ValueError(f"the body cannot be read: {error}") from error
        if not members.messages:
            raise ValueError("messages must not be empty")
        for opening in reversed(list(self._list.finditer(text))):
            spans = _spans_of(text, opening.end(), members.messages)
            if spans is not None and self._is_the_list(opening.end() - 1, spans[-1]):
                rows = Rope("I", SPAN_WORDS).appended(spans)
                digest = self._hasher.key(memoryview(text)[: _end(rows)])
                return self._body(members, BodyPrefix(_end(rows), digest, opening.end() - 1, rows), 0)
        raise ValueError("messages cannot be found in the body: is its name written with escapes?")

    def _body(self, members: _Members, prefix: BodyPrefix, same: int) -> ChatBody:
        if members.input_ids is not None and bytes(members.input_ids) != _NULL:
            raise ValueError(OWN_IDS)
        found = ((name, getattr(members, name)) for name in self._names)
        settings = tuple((name, bytes(raw)) for name, raw in found if raw is not UNSET)
        return ChatBody(self._text, settings, prefix, same)

    def _is_the_list(self, start: int, end: int) -> bool:
        """Whether the list that opens at `start` is the body's own and not one of the same content somewhere deeper."""
        closing = self._text.find(b"]", end) + 1
        try:
            return self._decoder.decode(self._text[:start] + _NULL + self._text[closing:]).messages is None
        except msgspec.DecodeError:
            return False


def _end(spans: Rope) -> int:
    return spans.number(len(spans) - 1, 1)


def _spans_of(text: bytes, offset: int, messages: list[Raw]) -> array[int] | None:
    """Begin and end of messages that follow one another from `offset` on; None if they do not."""
    spans = array("I")
    for raw in messages:
        separator = _SEPARATOR.match(text, offset)
        start = separator.end() if separator else offset
        offset = start + len(raw)
        if memoryview(text)[start:offset] != memoryview(raw):
            return None
        spans.extend((start, offset))
    return spans
