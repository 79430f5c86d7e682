"""What a thread's prompt needs of an engine's block hashes: a chain that can be forked, extended and taken up in its middle.

Implementations are values (`sglang.Chain`, `vllm.Chain`). This module knows no engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, Self


class BlockChain(Protocol):
    """The hashed part of one token sequence. A chain over no tokens is a root: it has the namespace and makes the others."""

    @property
    def page_size(self) -> int:
        """Tokens per block."""

    @property
    def digest_bytes(self) -> int:
        """Length of one block's whole digest."""

    def full_pages(self, tokens: int) -> int:
        """How many blocks of a sequence of this length have an identity."""

    def resumed(self, pages: int, digest: bytes, tail: Sequence[int]) -> Self:
        """This root's chain after `pages` blocks, the last of which has this digest, and the tokens that follow them."""

    def extend_digests(self, tokens: Sequence[int]) -> tuple[Self, list[bytes]]:
        """The chain after `tokens` and the whole digests of the blocks that they filled."""

    def ids(self, digests: Sequence[bytes]) -> array[int]:
        """What the engine's events call these blocks, as signed 64-bit integers."""
