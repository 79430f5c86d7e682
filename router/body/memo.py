"""Remembers, for prefixes of bodies seen before, where the conversation stood there, so that only the rest is parsed again.

A prefix is named by a seeded 128-bit hash at every 16 KiB boundary. Its checkpoint tells the end of the last message that is
complete within it, and the caller's state there. Both follow from the prefix alone, so they hold for every body that begins
with it, whatever follows: the reader is inside the top-level conversation list, right behind a value. Knows bytes and offsets;
what a state means is the caller's.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
import xxhash
from msgspec import Raw

from router.body.head import Head, HeadReader
from router.body.recency import RecentMap

S = TypeVar("S")

_SEPARATOR = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_COMMA, _OPEN = b",{"


class Checkpoint(msgspec.Struct, Generic[S], frozen=True):
    """`offset` lies behind message number `messages - 1` of the conversation; `state` is the caller's after that message."""

    head: Head
    offset: int
    messages: int
    state: S


class Walk(msgspec.Struct, Generic[S]):
    """The hashes of one body's prefixes, at multiples of the chunk size, and the deepest checkpoint that was known."""

    digests: list[bytes]
    found: Checkpoint[S] | None = None
    found_at: int = -1  # index of its digest


class PrefixMemo(Generic[S]):
    """Holds up to `checkpoints`, each some 350 bytes for 16 KiB of text. `seed` keeps clients from making two prefixes with one
    hash; tests may fix it."""

    def __init__(self, checkpoints: int = 131_072, *, chunk_bytes: int = 16 * 1024, seed: int | None = None) -> None:
        self._chunk_bytes = chunk_bytes
        self._entries: RecentMap[bytes, Checkpoint[S]] = RecentMap(checkpoints)
        self._seed = secrets.randbits(64) if seed is None else seed

    def __len__(self) -> int:
        return len(self._entries)

    def walk(self, body: bytes, salt: int) -> Walk[S] | None:
        """Look `body` up; None when it is too short to be remembered. `salt` keeps dialects apart."""
        chunk_bytes = self._chunk_bytes
        if len(body) < chunk_bytes:
            return None
        hasher = xxhash.xxh3_128(seed=self._seed ^ salt)
        view = memoryview(body)
        digests = []
        for start in range(0, len(body) - chunk_bytes + 1, chunk_bytes):
            hasher.update(view[start : start + chunk_bytes])
            digests.append(hasher.digest())
        walk: Walk[S] = Walk(digests)
        for index in range(len(digests) - 1, -1, -1):
            walk.found = self._entries.get(digests[index])
            if walk.found is not None:
                walk.found_at = index
                break
        return walk

    def remember(
        self, walk: Walk[S], body: bytes, text: bytes, messages: Sequence[Raw], states: Sequence[S], reader: HeadReader
    ) -> None:
        """Store checkpoints for the boundaries behind the one that was known. `messages` are those that were parsed: all of
        them, or what follows `walk.found`; `states` the caller's after each. `text` is `body` as it was read."""
        if not messages or walk.found_at == len(walk.digests) - 1:
            return
        found = walk.found
        if found is None:
            opening = reader.open(body, text, messages)
            if opening is None:
                return
            head, ends, before = opening.head, message_ends(text, opening.offset, messages, check=True), 0
        else:
            head, ends, before = found.head, message_ends(text, found.offset, messages, check=False), found.messages
        self._store(walk, head, ends, before, states)

    def _store(self, walk: Walk[S], head: Head, ends: list[int], before: int, states: Sequence[S]) -> None:
        done = 0  # messages that end within the boundary looked at
        for index in range(walk.found_at + 1, len(walk.digests)):
            boundary = (index + 1) * self._chunk_bytes
            had = done
            while done < len(ends) and ends[done] <= boundary:
                done += 1
            if done > had:
                self._entries.put(walk.digests[index], Checkpoint(head, ends[done - 1], before + done, states[done - 1]))
            if done == len(ends):
                return


def message_ends(text: bytes, offset: int, messages: Sequence[Raw], *, check: bool) -> list[int]:
    """The offset behind each of `messages`, which follow one another in the list that `offset` lies in.

    With `check`, stops at the first that is not at its place: a second list under the same key may have been the one that was
    parsed.
    """
    ends = []
    for raw in messages:
        if text[offset] == _COMMA and text[offset + 1] == _OPEN:
            start = offset + 1
        else:
            separator = _SEPARATOR.match(text, offset)
            start = separator.end() if separator else offset
        offset = start + len(raw)
        if check and not text.startswith(memoryview(raw), start):
            break
        ends.append(offset)
    return ends
