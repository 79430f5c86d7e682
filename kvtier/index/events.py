"""What engines and agents report about blocks, after their wire has been decoded.

Hashes are the engine's own event ids as signed 64-bit integers, whatever the wire used.
"""

from __future__ import annotations

import msgspec

from costmodel.values import Tier


class BlocksStored(msgspec.Struct, frozen=True):
    """These blocks are now in `tier`, in prompt order; `parent` is the block before the first (None at the start)."""

    hashes: tuple[int, ...]
    parent: int | None
    tier: Tier
    block_tokens: int


class BlocksRemoved(msgspec.Struct, frozen=True):
    """These blocks have left `tier` (None: every tier of the source)."""

    hashes: tuple[int, ...]
    tier: Tier | None


class AllCleared(msgspec.Struct, frozen=True):
    """The source has dropped everything it held."""


BlockEvent = BlocksStored | BlocksRemoved | AllCleared
