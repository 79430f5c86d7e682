"""What the store wants done with bytes. The agent does it and reports back; until then the bytes named here stay put."""

from __future__ import annotations

import msgspec

from kvtier.page.key import PageKey
from kvtier.page.kind import PageKind
from kvtier.store.page import SsdPlace


class Demotion(msgspec.Struct, frozen=True):
    """One page in DRAM, held until `demoted` or `demotion_failed` is reported."""

    key: PageKey
    generation: int
    offset: int
    length: int
    checksum: bytes
    kind: PageKind
    depth: int


class Demote(msgspec.Struct, frozen=True):
    """Write these pages to SSD together."""

    pages: tuple[Demotion, ...]


class Promote(msgspec.Struct, frozen=True):
    """Read a page from SSD into claimed bytes, check it, report `promoted` or `promotion_failed`."""

    write_id: int
    key: PageKey
    place: SsdPlace
    offset: int
    length: int
    checksum: bytes


class Keep(msgspec.Struct, frozen=True):
    """One page that outlives its segment."""

    key: PageKey
    place: SsdPlace
    length: int
    checksum: bytes
    kind: PageKind
    depth: int


class Reclaim(msgspec.Struct, frozen=True):
    """Write `keep` anew, report each as `kept` or `keep_failed`, then delete the segment and report `reclaimed`."""

    segment: int
    keep: tuple[Keep, ...]


class Clear(msgspec.Struct, frozen=True):
    """Note on SSD that what lies there of these spaces is forgotten, and report `cleared` or `clear_failed`."""

    spaces: tuple[bytes, ...]


Action = Demote | Promote | Reclaim | Clear
