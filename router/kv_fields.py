"""Bodies of `/v1/kv/prefetch` and `/v1/kv/pins`: how a prompt is named in them, and how they are read.

They may hold a million numbers: such members stay raw at first and are read a piece at a time, so that turns go on meanwhile.
What is wrong is told by the first thing found.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Iterator
from typing import Annotated, ClassVar, TypeVar

import msgspec
from fastapi import Request
from msgspec import Meta, Raw

from kvtier.page.key import DIGEST_BYTES, join_digests
from router.errors import BadRequest, BodyTooLarge

Body = TypeVar("Body", bound="NamesPrompt")

Name = Annotated[str, Meta(max_length=1024)]

_MAX_BODY_BYTES = 10 << 20  # a million token ids take less
_MAX_ITEMS = 1 << 20  # tokens; longer than any model's context
_PIECE_BYTES = 64 << 10
_ABSENT = Raw(b"null")
_PARAM = re.compile(r"\$\.(\w+)|field `(\w+)`")
_DIGEST = re.compile(rf"[0-9a-fA-F]{{{2 * DIGEST_BYTES}}}")
_SHOWN = 80  # characters of a wrong digest
_ids = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, lt=1 << 32)]])
_hex = msgspec.json.Decoder(list[Name])


class NamesPrompt(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The members that name a prompt; of `subjects` exactly one must be there."""

    thread: Name | None = None
    tokens: Raw = _ABSENT
    hashes: Raw = _ABSENT  # whole page digests in hex, from the first page on
    model: Name | None = None  # needed with all but `thread` where several pools serve
    cache_salt: Name | None = None

    subjects: ClassVar[tuple[str, ...]] = ("thread", "tokens", "hashes")

    def has(self, name: str) -> bool:
        value = getattr(self, name)
        return given(value) if isinstance(value, Raw) else value is not None


def given(raw: Raw) -> bool:
    return bytes(raw) != b"null"


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Raises `BadRequest` naming the member that is wrong, or `BodyTooLarge`."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > _MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body exceeds {_MAX_BODY_BYTES} bytes")
    try:
        body = msgspec.json.decode(b"".join(parts), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = _PARAM.search(str(error))
        raise BadRequest(f"the body: {error}", param=found and (found[1] or found[2])) from error
    named = [name for name in kind.subjects if body.has(name)]
    if len(named) != 1:
        raise BadRequest(f"give exactly one of {', '.join(kind.subjects)}, not {', '.join(named) or 'none'}")
    return body


async def token_ids(raw: Raw) -> array[int]:
    """Of `tokens`, typecode I. Raises `BadRequest`."""
    ids = array("I")
    for piece in _pieces(raw, "tokens"):
        try:
            ids.extend(_ids.decode(piece))
        except msgspec.DecodeError as error:
            raise BadRequest(f"tokens: {error}", param="tokens") from error
        _bound(len(ids), "tokens")
        await asyncio.sleep(0)
    return ids


async def page_digests(raw: Raw) -> bytes:
    """Of `hashes`, one after the other. Raises `BadRequest`."""
    digests = bytearray()
    for piece in _pieces(raw, "hashes"):
        try:
            texts = _hex.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"hashes: {error}", param="hashes") from error
        try:
            digests += join_digests(texts)
        except ValueError as error:
            wrong = next((text for text in texts if not _DIGEST.fullmatch(text)), "")
            told = f"hashes: page digests have {2 * DIGEST_BYTES} hex digits each, not {wrong[:_SHOWN]!r}"
            raise BadRequest(told, param="hashes") from error
        await asyncio.sleep(0)
    return bytes(digests)


def _pieces(raw: Raw, member: str) -> Iterator[bytes]:
    """A JSON array of numbers, or of strings without commas, as several arrays."""
    text = bytes(raw)
    if text[:1] != b"[" or not text[1:-1].strip():
        raise BadRequest(f"{member}: a list of at least one is expected", param=member)
    at, end = 1, len(text) - 1
    while at < end:
        cut = text.find(b",", at + _PIECE_BYTES)
        cut = end if cut < 0 else cut
        yield b"[" + text[at:cut] + b"]"
        at = cut + 1


def _bound(count: int, member: str) -> None:
    if count > _MAX_ITEMS:
        raise BadRequest(f"{member}: at most {_MAX_ITEMS} are taken", param=member)
