"""SGLang's block identity: a chain of SHA-256 over pages of token ids.

page_digest_i = sha256(page_digest_{i-1} or seed, then each token as u32 little-endian); the event id is the digest's first 8
bytes, big-endian and signed; the storage key is its hex. Only full pages have an identity. With EAGLE-family speculation a
position hashes the pair of its token and the next. Checked against captures of SGLang 0.5.23 and its own parity tests.

A namespace seeds the chain, and the two chains differ: events know `cache_salt` only, storage keys `extra_key` as well.
This module knows no tokenizer and no wire.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise

import msgspec

SLAB_TOKENS = 65_536
"""Tokens that are handed over at once: copying more would keep other threads waiting for the interpreter."""

_TOKEN_BYTES = 4
_DIGEST_BYTES = 32
_SALT_TAG = b"sglang-cache-salt-v1\0"
_NAMESPACE_TAG = b"sglang-cache-namespace-v1"


class Chain(msgspec.Struct, frozen=True):
    """The hashed part of one token sequence; extending it costs only the new pages. Being frozen, it may be forked freely."""

    page_size: int
    bigram: bool = False
    digest: bytes = b""  # of the last full page, or the seed, or nothing
    tail: bytes = b""  # tokens since, u32 little-endian; with bigrams it starts with the first unfinished position
    pages: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")

    @property
    def tokens(self) -> int:
        """Tokens given so far."""
        return self.pages * self.page_size + len(self.tail) // _TOKEN_BYTES

    @property
    def digest_bytes(self) -> int:
        return _DIGEST_BYTES

    def full_pages(self, tokens: int) -> int:
        """Pages of a sequence of this length that have an identity: with bigrams the last position wants its next token."""
        return max(0, tokens - self.bigram) // self.page_size

    def resumed(self, pages: int, digest: bytes, tail: Sequence[int]) -> Chain:
        """This root's chain after `pages` pages, the last of which has this digest, and the tokens that follow them."""
        return Chain(self.page_size, self.bigram, digest if pages else self.digest, pack(tail), pages)

    def ids(self, digests: Sequence[bytes]) -> array[int]:
        """Event ids as array `q`."""
        return array("q", map(event_id, digests))

    def extend(self, tokens: Sequence[int]) -> tuple[Chain, tuple[int, ...]]:
        """The chain after `tokens` and the event ids of the pages that they filled."""
        chain, digests = self.extend_digests(tokens)
        return chain, tuple(map(event_id, digests))

    def extend_digests(self, tokens: Sequence[int]) -> tuple[Chain, list[bytes]]:
        """As `extend`, with the whole 32-byte digests, of which storage keys are made."""
        chain, digests = self, list[bytes]()
        for start in range(0, max(len(tokens), 1), SLAB_TOKENS):
            chain, found = chain._extend(tokens[start : start + SLAB_TOKENS])
            digests += found
        return chain, digests

    def _extend(self, tokens: Sequence[int]) -> tuple[Chain, list[bytes]]:
        data = self.tail + pack(tokens)
        page_bytes = self.page_size * _TOKEN_BYTES
        lookahead = _TOKEN_BYTES if self.bigram else 0
        full = max(0, (len(data) - lookahead) // page_bytes)
        digest = self.digest
        digests = []
        for start in range(0, full * page_bytes, page_bytes):
            page = data[start : start + page_bytes + lookahead]
            digest = sha256(digest + (_pairs(page) if self.bigram else page)).digest()
            digests.append(digest)
        tail = data[full * page_bytes :]
        return Chain(self.page_size, self.bigram, digest, tail, self.pages + full), digests


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as u32 little-endian. Raises `OverflowError` for an id outside 32 bits."""
    packed = array("I", tokens)
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def event_id(digest: bytes) -> int:
    """What the engine's events call a block."""
    return int.from_bytes(digest[:8], "big", signed=True)


def event_seed(cache_salt: str | None) -> bytes:
    """Seed of the event chain. SGLang treats an empty salt as none."""
    return sha256(_SALT_TAG + cache_salt.encode()).digest() if cache_salt else b""


def storage_seed(extra_key: str | None, cache_salt: str | None) -> bytes:
    """Seed of the storage chain: the namespace of LoRA or other extra key, and salt."""
    cache_salt = cache_salt or None
    if extra_key is None and cache_salt is None:
        return b""
    return sha256(_NAMESPACE_TAG + _optional(extra_key) + _optional(cache_salt)).digest()


def event_ids(tokens: Iterable[int], page_size: int, *, bigram: bool = False, cache_salt: str | None = None) -> tuple[int, ...]:
    """Event ids of all full pages of a whole prompt."""
    return Chain(page_size, bigram, event_seed(cache_salt)).extend(list(tokens))[1]


def _optional(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return b"\1" + len(data).to_bytes(8, "little") + data


def _pairs(page: bytes) -> bytes:
    """Positions t0..tP become t0 t1, t1 t2, …: each inner token twice."""
    tokens = [page[i : i + _TOKEN_BYTES] for i in range(0, len(page), _TOKEN_BYTES)]
    return b"".join(first + second for first, second in pairwise(tokens))
