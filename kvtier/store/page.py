"""One page as its node knows it: where its bytes lie in DRAM and on SSD, who holds it, and how it is used."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvtier.page.key import PageKey
from kvtier.page.kind import PageKind
from kvtier.store.heat import NEVER

NOWHERE = -1


class SsdPlace(NamedTuple):
    """Where a page's bytes begin on SSD."""

    segment: int
    offset: int


class Page(msgspec.Struct, gc=False):
    """Mutable, owned by the store alone. A page is in DRAM when `offset` is not NOWHERE, on SSD when `place` is not None."""

    key: PageKey
    length: int
    checksum: bytes
    tokens: int
    kind: PageKind = PageKind.USER_QUERY
    depth: int = 0
    offset: int = NOWHERE
    generation: int = 0  # of the bytes in DRAM; never used twice
    last_ms: float = 0.0
    heat: float = NEVER
    hits: int = 0
    holds: int = 0  # leases and I/O that read the bytes in DRAM
    pins: int = 0
    ticket: int = 0  # its entry in the victim queue; 0 = none
    place: SsdPlace | None = None
    demoting: bool = False  # queued for SSD or being written there
    leaving: bool = False  # held until it is on SSD, then dropped from DRAM
    doomed: bool = False  # forgotten; the bytes wait for the last hold
    read_since_written: bool = False  # since it was last written to SSD: worth moving when its segment is reclaimed

    @property
    def in_dram(self) -> bool:
        return self.offset != NOWHERE

    @property
    def evictable(self) -> bool:
        return self.offset != NOWHERE and not (self.holds or self.pins or self.doomed)
