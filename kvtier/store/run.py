"""Pages that were written together, for as long as nothing tells them apart: one object for all of them.

Pages of a prompt mostly come, are read and go together. What concerns all of a run costs as much as what concerns a page; as
soon as something concerns one page of it (a pin, a tag, the SSD, a read of less than all), the run is told apart into pages,
for good. A run is worth what its deepest page is, and loses its tail first: behind a gap a prompt's pages are of no use.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import msgspec

from kvtier.page.checksum import CHECKSUM_BYTES, split_checksums
from kvtier.page.key import PageKeys
from kvtier.page.kind import PageKind
from kvtier.store.heat import NEVER
from kvtier.store.page import Page


class Run(msgspec.Struct, eq=False, gc=False):
    """Mutable, owned by the store alone. All in DRAM, on no SSD, not pinned; `pages` once they are told apart."""

    keys: PageKeys
    length: int  # of each page
    kind: PageKind
    first_depth: int  # the next page is one deeper
    offsets: array[int]
    checksums: bytes = b""  # joined
    tokens: int = 0
    generation: int = 0  # of the first page; the next has the next
    last_ms: float = 0.0
    heat: float = NEVER
    hits: int = 0
    holds: int = 0  # leases of all of it
    ticket: int = 0  # its entry in the victim queue; 0 = none
    read_since_written: bool = False
    doomed: bool = False  # never: who dooms a page, or lets it leave, tells the run apart
    leaving: bool = False
    pages: list[Page] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def depth(self) -> int:
        return self.first_depth + len(self.offsets) - 1

    @property
    def depths(self) -> range:
        return range(self.first_depth, self.first_depth + len(self.offsets))

    @property
    def generations(self) -> range:
        return range(self.generation, self.generation + len(self.offsets))

    @property
    def evictable(self) -> bool:
        return not self.holds and self.pages is None

    def tell_apart(self) -> list[Page]:
        """Pages that are what this was."""
        self.pages = list(
            map(
                Page,
                self.keys,
                repeat(self.length),
                split_checksums(self.checksums),
                repeat(self.tokens),
                repeat(self.kind),
                self.depths,
                self.offsets,
                self.generations,
                repeat(self.last_ms),
                repeat(self.heat),
                repeat(self.hits),
                repeat(self.holds),
            )
        )
        return self.pages

    def cut(self, count: int) -> tuple[PageKeys, Sequence[int]]:
        """Lose the last `count` pages; their keys and offsets."""
        left = len(self.offsets) - count
        keys, offsets = self.keys[left:], self.offsets[left:]
        self.keys, self.offsets = self.keys[:left], self.offsets[:left]
        self.checksums = self.checksums[: left * CHECKSUM_BYTES]
        return keys, offsets
