"""The name of one page: its space and the engine's own chained digest of the tokens up to and with it.

A key is one bytes object, because a pool holds a million of them and looks up a thousand a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from struct import Struct
from typing import NewType

from kvtier.page.space import SPACE_BYTES

DIGEST_BYTES = 32
KEY_BYTES = SPACE_BYTES + DIGEST_BYTES

PageKey = NewType("PageKey", bytes)

space_of: Callable[[PageKey], bytes] = itemgetter(slice(SPACE_BYTES))
digest_of: Callable[[PageKey], bytes] = itemgetter(slice(SPACE_BYTES, None))

_DIGEST = Struct(f"{DIGEST_BYTES}s")


def page_key(space: bytes, digest: bytes) -> PageKey:
    """`space` of SPACE_BYTES, `digest` of DIGEST_BYTES."""
    return PageKey(space + digest)


def page_keys(space: bytes, digests: bytes) -> list[PageKey]:
    """One key for every DIGEST_BYTES of `digests`. Raises ValueError for a broken length."""
    if len(digests) % DIGEST_BYTES:
        raise ValueError(f"digests come in {DIGEST_BYTES} bytes each, {len(digests)} is no multiple of it")
    return [PageKey(space + digest) for (digest,) in _DIGEST.iter_unpack(digests)]


def join_digests(hex_digests: Iterable[str]) -> bytes:
    """From an engine's hex spelling. Raises ValueError for one that is no SHA-256."""
    digests = [bytes.fromhex(text) for text in hex_digests]
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"page digests are {DIGEST_BYTES} bytes in hex, one of {len(digests)} is not")
    return b"".join(digests)
