"""The beginning of a chat body that was read, by its digest, so that only what follows it need be read of the next one."""

from __future__ import annotations

import msgspec

from engine_adapters.prompt.rope import Rope

SPAN_WORDS = 2


class BodyPrefix(msgspec.Struct, frozen=True):
    """A body up to behind its last message. `list_start`: where the list of messages opens; `spans`: begin and end of each.

    Of a body of another protocol (`DialectBody`) also `starts`: of each piece, which of the chat's messages is its first, not
    counting those that lead, and which of the body's; and `lead`, the key of what those were made of.
    """

    length: int
    digest: bytes
    list_start: int
    spans: Rope
    starts: Rope | None = None
    lead: bytes = b""
