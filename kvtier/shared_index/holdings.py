"""How the shared store spells things: who holds a block as bytes, changes to that, sources, and keys that suit a cluster.

A block's value is a row of entries, 9 bytes each: the holder's life (8 random bytes, given when a source is first named or was
emptied) and its tiers, reported in the low four bits, assumed in the high ones. A source that is emptied takes a new life, so
that emptying costs one write; entries of lives that are over are nobody's, and go with the time to live of the block.
Keys of one shard share a hash tag: in a Redis cluster they lie in one slot, and one command reaches them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from costmodel.values import Tier, WorkerKey
from kvtier.index.source_key import NodeKey, SourceKey

LIFE_BYTES = 8
ENTRY_BYTES = LIFE_BYTES + 1
_REPORTED = 0x0F


class Change(NamedTuple):
    """What becomes of one holder's tiers: `(tiers & keep) | put`."""

    keep: int
    put: int

    def then(self, later: Change) -> Change:
        return Change(self.keep & later.keep, (self.put & later.keep) | later.put)


def stored(tier: Tier) -> Change:
    """A report replaces what was assumed."""
    return Change(_REPORTED, _bit(tier))


def removed(tier: Tier | None) -> Change:
    return Change(0, 0) if tier is None else Change(0xFF & ~(_bit(tier) | _bit(tier) << 4), 0)


def assumed(tier: Tier) -> Change:
    return Change(0xFF, _bit(tier) << 4)


REFUTED = Change(_REPORTED, 0)


def spell_change(life: bytes, change: Change) -> bytes:
    return life + bytes(change)


def entries(value: bytes) -> Iterator[tuple[bytes, int]]:
    """(life, tiers) of everyone who holds a block."""
    for at in range(0, len(value) - ENTRY_BYTES + 1, ENTRY_BYTES):
        yield value[at : at + LIFE_BYTES], value[at + LIFE_BYTES]


class SourceRow(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one source."""

    life: bytes
    trusted: bool = True
    heard_ms: float = 0.0


def spell_row(row: SourceRow) -> bytes:
    return msgspec.msgpack.encode(row)


def read_row(value: bytes) -> SourceRow:
    return msgspec.msgpack.decode(value, type=SourceRow)


def spell_source(source: SourceKey) -> bytes:
    kind = "w" if isinstance(source, WorkerKey) else "n"
    return msgspec.json.encode((kind, *source))


def read_source(field: bytes) -> SourceKey:
    kind, name, rest = msgspec.json.decode(field, type=tuple[str, str, int | str])
    return WorkerKey(name, int(rest)) if kind == "w" else NodeKey(name, str(rest))


class Keyspace(NamedTuple):
    """Names of everything that one index keeps. `shards` is a power of two, and the same for everyone who shares."""

    name: str
    shards: int

    def shard(self, block: int) -> int:
        """By other bits than those that shard the index in memory."""
        return block >> 16 & self.shards - 1

    def block(self, block: int) -> str:
        return f"{{{self.name}:{self.shard(block)}}}:{block & (1 << 64) - 1:x}"

    def born(self, shard: int) -> str:
        """Holds what tells a shard that lost everything from one that did not."""
        return f"{{{self.name}:{shard}}}:born"

    @property
    def sources(self) -> str:
        return f"{{{self.name}:sources}}"


def _bit(tier: Tier) -> int:
    return 1 << tier - 1
