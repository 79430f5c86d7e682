"""A body of another protocol, read as the chat that the engine makes of it, message by message.

As of a chat body, only what follows the known beginning is read and converted. Conversations in which one message's conversion
depends on others are converted whole (`NotMessageWise`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from engine_adapters.prompt.body_prefix import BodyPrefix
from engine_adapters.prompt.chat_body import ChatBody, read_body
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.rope import Rope

JsonObject = dict[str, Any]

_SYSTEM = "system"


class NotMessageWise(Exception):
    """This conversation cannot be converted message by message."""


class DialectForm(Protocol):
    """How bodies of one protocol become chats of one engine. Raises ValueError, KeyError, TypeError or AttributeError where the
    engine answers 400."""

    @property
    def names(self) -> tuple[str, ...]:
        """Members that shape the prompt beside the messages and `system`."""

    def lead(self, system: Any) -> list[JsonObject]:
        """What stands before the first message."""

    def converted(self, message: Mapping[str, Any]) -> list[JsonObject]:
        """One message's. Raises NotMessageWise where it is not its own affair."""

    def settings(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """Members of the chat beside its messages."""

    def whole(self, body: bytes) -> Mapping[str, Any]:
        """The chat, converted at once."""


class DialectBody:
    """See `TalkBody`. Messages are converted when they are new or looked into."""

    def __init__(self, raw: ChatBody, before: BodyPrefix | None, hasher: Hasher, form: DialectForm) -> None:
        self._raw = raw
        self._form = form
        settings = dict(raw.settings)
        self._system = settings.pop(_SYSTEM, b"")
        self._settings = settings
        self._lead = form.lead(msgspec.json.decode(self._system) if self._system else None)
        lead_key = hasher.key(self._system) if self._lead else b""
        self._converted: dict[int, list[JsonObject]] = {}
        known, count = Rope("I"), 0
        if before is not None and before.starts is not None and raw.same:
            known, count = before.starts, before.count - bool(before.lead)
        self._starts = known.appended(self._new_starts(len(known), count))
        self.count = self._chat_count() + len(self._lead)
        self.same = before.count if before is not None and len(known) and before.lead == lead_key else 0
        self.prefix = msgspec.structs.replace(raw.prefix, starts=self._starts, lead=lead_key, count=self.count)
        if not self.count:
            raise ValueError("nothing is left of the messages")

    def role(self, index: int) -> str | None:
        return _SYSTEM if index < len(self._lead) else None

    def message(self, index: int) -> JsonObject:
        if index < len(self._lead):
            return self._lead[index]
        raw, place = self._place(index)
        return self._chat_messages(raw)[place]

    def first_key(self, hasher: Hasher) -> bytes:
        return self._key(0, hasher)

    def keys(self, hasher: Hasher, start: int = 0) -> array[int]:
        """A message's is of the bytes that it was made of, and which of their messages it is."""
        keys = array("I")
        for index in range(start, self.count):
            keys.frombytes(self._key(index, hasher))
        return keys

    def head_key(self, hasher: Hasher) -> bytes:
        return hasher.key(b"\0".join(part for name, raw in self._settings.items() for part in (name.encode(), raw)))

    def members(self) -> Mapping[str, Any]:
        return self._form.settings({name: msgspec.json.decode(raw) for name, raw in self._settings.items()})

    def _new_starts(self, first: int, count: int) -> array[int]:
        """Of the body's messages from number `first` on, when those before made `count` of the chat's."""
        added = array("I")
        for index in range(first, self._raw.count):
            added.append(count)
            count += len(self._chat_messages(index))
        return added

    def _chat_count(self) -> int:
        last = len(self._starts) - 1
        return self._starts.number(last) + len(self._chat_messages(last))

    def _key(self, index: int, hasher: Hasher) -> bytes:
        running = hasher.running()
        if index < len(self._lead):
            running.update(self._system)
            running.update(_SYSTEM.encode())
        else:
            raw, place = self._place(index)
            running.update(self._raw.raw(raw))
            running.update(b"%d" % place)
        digest: bytes = running.digest()
        return digest

    def _place(self, index: int) -> tuple[int, int]:
        """The body's message that a chat's message was made of, and its number among those of it."""
        index -= len(self._lead)
        raw = self._starts.count_to(index) - 1
        return raw, index - self._starts.number(raw)

    def _chat_messages(self, raw: int) -> list[JsonObject]:
        found = self._converted.get(raw)
        if found is None:
            found = self._converted[raw] = self._form.converted(self._raw.message(raw))
        return found


def read_dialect(text: bytes, before: BodyPrefix | None, hasher: Hasher, form: DialectForm) -> DialectBody:
    """Raises ValueError for what is no body of this protocol, NotMessageWise for what must be converted whole."""
    if before is not None and before.starts is None:
        before = None  # that of a chat body
    try:
        return DialectBody(read_body(text, before, hasher, (*form.names, _SYSTEM)), before, hasher, form)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the body is not of the form that its path takes: {error!r}") from error
