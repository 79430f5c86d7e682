"""Digests of texts and messages, by which prompts are compared instead of keeping their text."""

from __future__ import annotations

import msgspec
import xxhash


class Hasher(msgspec.Struct, frozen=True):
    """Digests of pieces and keys of messages, under a seed that clients do not know."""

    seed: int

    def piece(self, text: str) -> int:
        """Raises ValueError for lone surrogates."""
        return xxhash.xxh3_64_intdigest(text.encode(), self.seed)

    def running(self) -> xxhash.xxh3_128:
        """Takes bytes piece by piece; its digest is that of `key`."""
        return xxhash.xxh3_128(seed=self.seed)

    def key(self, data: bytes | memoryview) -> bytes:
        return xxhash.xxh3_128_digest(data, self.seed)
