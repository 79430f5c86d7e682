"""A body of another protocol, read as the chat that the engine makes of it, piece by piece.

A piece is a message of that protocol, or several that make one message of the chat. As of a chat body, only what follows the
known beginning is read and converted, and the last known piece, which may go on. Conversations in which pieces depend on others
are converted whole (`NotMessageWise`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine_adapters.prompt.body_prefix import BodyPrefix
from engine_adapters.prompt.chat_body import ChatBody, ListName, read_body
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.rope import Rope

JsonObject = dict[str, Any]

_CHAT, _RAW = range(2)  # columns of `BodyPrefix.starts`


class NotMessageWise(Exception):
    """This conversation cannot be converted piece by piece."""


class DialectForm(Protocol):
    """How bodies of one protocol become chats of one engine. Raises ValueError, KeyError, TypeError or AttributeError where the
    engine answers 400."""

    @property
    def list_name(self) -> ListName:
        """The member that has the conversation."""

    @property
    def lead_name(self) -> str:
        """The member that has the system prompt."""

    @property
    def names(self) -> tuple[str, ...]:
        """Other members that shape the prompt."""

    def lead(self, system: Any) -> list[JsonObject]:
        """What stands before the conversation: one message, or none."""

    def joins(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether two messages that follow one another belong to one piece."""

    def converted(self, piece: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
        """One piece's messages. Raises NotMessageWise where they are not its own affair."""

    def settings(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """Members of the chat beside its messages."""

    def whole(self, body: bytes) -> Mapping[str, Any]:
        """The chat, converted at once."""


class DialectBody:
    """See `TalkBody`. Pieces are converted when they are new or looked into."""

    def __init__(self, raw: ChatBody, before: BodyPrefix | None, hasher: Hasher, form: DialectForm) -> None:
        self._raw = raw
        self._form = form
        self._settings = dict(raw.settings)
        self._system = self._settings.pop(form.lead_name, b"")
        self._lead = form.lead(msgspec.json.decode(self._system) if self._system else None)
        lead_key = hasher.key(self._system) if self._lead else b""
        self._converted: dict[int, list[JsonObject]] = {}
        known, chat_start, raw_start = Rope("I", 2), 0, 0
        if before is not None and before.starts is not None and raw.same:
            known = before.starts.prefix(len(before.starts) - 1)
            chat_start, raw_start = before.starts.row(len(before.starts) - 1)
        self._starts = known
        self.count = len(self._lead) + self._add_pieces(chat_start, raw_start)
        self.same = len(self._lead) + chat_start if before is not None and before.lead == lead_key and len(known) else 0
        self.prefix = msgspec.structs.replace(raw.prefix, starts=self._starts, lead=lead_key)
        if not self.count:
            raise ValueError("nothing is left of the messages")

    def role(self, index: int) -> str | None:
        return "system" if index < len(self._lead) else None

    def message(self, index: int) -> JsonObject:
        if index < len(self._lead):
            return self._lead[index]
        piece, place = self._place(index)
        return self._chat_messages(piece)[place]

    def first_key(self, hasher: Hasher) -> bytes:
        return self._key(0, hasher)

    def keys(self, hasher: Hasher, start: int = 0) -> array[int]:
        """A message's is of the bytes that its piece was made of, and which of their messages it is."""
        keys = array("I")
        for index in range(start, self.count):
            keys.frombytes(self._key(index, hasher))
        return keys

    def head_key(self, hasher: Hasher) -> bytes:
        return hasher.key(b"\0".join(part for name, raw in self._settings.items() for part in (name.encode(), raw)))

    def members(self) -> Mapping[str, Any]:
        return self._form.settings({name: msgspec.json.decode(raw) for name, raw in self._settings.items()})

    def _add_pieces(self, count: int, first: int) -> int:
        """From the body's message `first` on, when those before made `count` of the chat's. Returns how many all make."""
        raw, joins = self._raw, self._form.joins
        rows = array("I")
        known, edges = len(self._starts), [first]
        before = raw.value(first)
        for index in range(first + 1, raw.count):
            after = raw.value(index)
            if not joins(before, after):
                edges.append(index)
            before = after
        for number, (start, end) in enumerate(zip(edges, [*edges[1:], raw.count], strict=True), known):
            rows.extend((count, start))
            found = self._converted[number] = self._form.converted([raw.value(index) for index in range(start, end)])
            count += len(found)
        self._starts = self._starts.appended(rows)
        return count

    def _key(self, index: int, hasher: Hasher) -> bytes:
        running = hasher.running()
        if index < len(self._lead):
            running.update(self._system)
            running.update(b"lead")
        else:
            piece, place = self._place(index)
            for raw in self._raws(piece):
                running.update(self._raw.raw(raw))
            running.update(b"%d" % place)
        digest: bytes = running.digest()
        return digest

    def _place(self, index: int) -> tuple[int, int]:
        """The piece that a chat's message was made of, and its number among those of it."""
        index -= len(self._lead)
        piece = self._starts.count_to(index, _CHAT) - 1
        return piece, index - self._starts.number(piece, _CHAT)

    def _raws(self, piece: int) -> range:
        """The body's messages in a piece."""
        last = piece == len(self._starts) - 1
        end = self._raw.count if last else self._starts.number(piece + 1, _RAW)
        return range(self._starts.number(piece, _RAW), end)

    def _chat_messages(self, piece: int) -> list[JsonObject]:
        found = self._converted.get(piece)
        if found is None:
            values = [self._raw.value(raw) for raw in self._raws(piece)]
            found = self._converted[piece] = self._form.converted(values)
        return found


def read_dialect(text: bytes, before: BodyPrefix | None, hasher: Hasher, form: DialectForm) -> DialectBody:
    """Raises ValueError for what is no body of this protocol, NotMessageWise for what must be converted whole."""
    if before is not None and before.starts is None:
        before = None  # that of a chat body
    try:
        raw = read_body(text, before, hasher, (*form.names, form.lead_name), form.list_name)
        return DialectBody(raw, before, hasher, form)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the body is not of the form that its path takes: {error!r}") from error


def whole_chat(text: bytes, form: DialectForm) -> Mapping[str, Any]:
    """The chat, converted at once. Raises ValueError for what is no body of this protocol."""
    try:
        return form.whole(text)
    except (KeyError, TypeError, AttributeError, msgspec.DecodeError) as error:
        raise ValueError(f"the body is not of the form that its path takes: {error!r}") from error
