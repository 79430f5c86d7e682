"""A page space: everything but the tokens that decides which bytes a page holds.

Two pages of the same tokens are interchangeable only within one space; a space that differs in any field never meets another's
pages. Importable inside an engine's own environment: standard library and msgspec alone.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

SPACE_BYTES = 16
_TAG = b"loadback-page-space-1\0"

REPLICATED = -1
MAX_SHARDS = 4096  # of one page: agents keep a bit for each


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """Which part of a page one rank holds. `tp_rank` REPLICATED: every rank holds the same bytes (MLA), stored once."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1

    def __post_init__(self) -> None:
        if self.tp_rank == REPLICATED and self.tp_size != 1:
            raise ValueError(f"a replicated page is the same for every tp_size: give 1, not {self.tp_size}")
        for rank, size in ((max(self.tp_rank, 0), self.tp_size), (self.pp_rank, self.pp_size), (self.cp_rank, self.cp_size)):
            if not 0 <= rank < size:
                raise ValueError(f"no such shard: {self}")
        if self.count > MAX_SHARDS:
            raise ValueError(f"a page has {MAX_SHARDS} shards at most, not {self.count}")

    @property
    def index(self) -> int:
        """0-based number of this shard among `count`."""
        return (max(self.tp_rank, 0) * self.pp_size + self.pp_rank) * self.cp_size + self.cp_rank

    @property
    def count(self) -> int:
        """Shards that make up one whole page of a worker."""
        return self.tp_size * self.pp_size * self.cp_size


class PageSpace(msgspec.Struct, frozen=True, array_like=True):
    """Identity of all pages of one model shard. Strings are the engine's own words, never interpreted."""

    model: str
    kv_dtype: str
    layout: str
    page_tokens: int
    revision: str = ""
    shard: Shard = Shard()
    pool: str = "kv"
    namespace: str = ""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("a page space without a model would mix the pages of different models")
        if self.page_tokens < 1:
            raise ValueError(f"page_tokens must be at least 1, not {self.page_tokens}")

    @property
    def whole(self) -> PageSpace:
        """The space without its rank: equal for all shards of one page."""
        shard = self.shard
        none = Shard(min(shard.tp_rank, 0), shard.tp_size, 0, shard.pp_size, 0, shard.cp_size)
        return msgspec.structs.replace(self, shard=none)


def space_digest(space: PageSpace) -> bytes:
    """SPACE_BYTES that name the space; a changed schema names other spaces."""
    return sha256(_TAG + msgspec.msgpack.encode(space)).digest()[:SPACE_BYTES]
