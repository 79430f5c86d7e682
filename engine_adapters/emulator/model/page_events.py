"""What happens to pages of KV cache, as the emulated cache reports it.

Unlike the router's own events these keep a reference to the token ids behind the pages, because SGLang publishes them; nothing
is copied until an event is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from costmodel.values import Tier
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored


class PagesStored(msgspec.Struct, frozen=True):
    """`hashes` are now in `tier`, in prompt order; their tokens start at page `first_page` of `tokens` (None when unknown)."""

    hashes: tuple[int, ...]
    parent: int | None
    tier: Tier
    tokens: Sequence[int] | None
    first_page: int
    cache_salt: str | None = None


class PagesRemoved(msgspec.Struct, frozen=True):
    hashes: tuple[int, ...]
    tier: Tier


class PagesCleared(msgspec.Struct, frozen=True):
    """Every tier was emptied."""


PageEvent = PagesStored | PagesRemoved | PagesCleared


def as_block_event(event: PageEvent, page_tokens: int) -> BlockEvent:
    """The same fact in the router's words, for a simulator that needs no wire."""
    if isinstance(event, PagesStored):
        return BlocksStored(event.hashes, event.parent, event.tier, page_tokens)
    if isinstance(event, PagesRemoved):
        return BlocksRemoved(event.hashes, event.tier)
    return AllCleared()
