"""Takes out of replies what was only asked for by the gateway: the usage chunk of a stream and the engine's detail object.

Nothing is re-serialised: a member is cut out with its comma, a chunk that holds nothing else is dropped. SGLang 0.5.23 sends
its `sglext` in a stream as a chunk of its own with empty `choices`, before the usage chunk; in a whole reply as a top-level
member (serving_chat.py).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.body.members import Member, members

_EMPTY_CHOICES = (b'"choices":[]', b'"choices": []')


class _Chunk(msgspec.Struct):
    choices: list[Raw] | None = None
    usage: Raw | UnsetType = UNSET
    sglext: Raw | UnsetType = UNSET


_CHUNK = msgspec.json.Decoder(_Chunk)


def strip_member(reply: bytes, key: str) -> bytes:
    """`reply` without its top-level members of that key; `reply` itself where it has none or is not a JSON object.

    Takes a bare JSON object or one SSE event whose data is one; members of that name further in stay.
    """
    name = key.encode()
    if b'"' + name + b'"' not in reply:
        return reply
    start = _object_at(reply)
    while start is not None:
        try:
            found = list(members(reply, start))
        except (ValueError, IndexError):
            return reply
        index = next((i for i, one in enumerate(found) if one.key == name), None)
        if index is None:
            return reply
        reply = _cut(reply, found, index)
    return reply


def is_usage_only_chunk(event: bytes) -> bool:
    """Whether a chunk exists only to carry usage: no choice, no engine details."""
    chunk = _choiceless(event)
    return chunk is not None and _is_set(chunk.usage) and not _is_set(chunk.sglext)


def is_details_only_chunk(event: bytes) -> bool:
    """Whether a chunk exists only to carry `sglext`."""
    chunk = _choiceless(event)
    return chunk is not None and _is_set(chunk.sglext) and not _is_set(chunk.usage)


def details(data: bytes) -> bytes | None:
    """The raw `sglext` object of a whole reply or of one event."""
    chunk = _decode(data) if b'"sglext"' in data else None
    return bytes(chunk.sglext) if chunk is not None and isinstance(chunk.sglext, Raw) and _is_set(chunk.sglext) else None


def _choiceless(event: bytes) -> _Chunk | None:
    if not any(empty in event for empty in _EMPTY_CHOICES):
        return None
    chunk = _decode(event)
    return chunk if chunk is not None and chunk.choices == [] else None


def _decode(data: bytes) -> _Chunk | None:
    start = _object_at(data)
    if start is None:
        return None
    try:
        return _CHUNK.decode(data[start:])
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_set(raw: Raw | UnsetType) -> bool:
    return raw is not UNSET and bytes(raw) != b"null"


def _object_at(data: bytes) -> int | None:
    """Where the JSON object of a reply or of an event's data line begins."""
    if data.startswith(b"{"):
        return 0
    at = data.find(b"{")
    return at if at >= 0 and (data[:at].isspace() or data[:at].rstrip().endswith(b"data:")) else None


def _cut(reply: bytes, found: list[Member], index: int) -> bytes:
    """Without member `index`, and without the comma that follows it, or for the last one precedes it."""
    if index + 1 < len(found):
        return reply[: found[index].start] + reply[found[index + 1].start :]
    start = found[index - 1].end if index else found[index].start
    return reply[:start] + reply[found[index].end :]
