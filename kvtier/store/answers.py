"""What the store answers about many pages at once, one entry a page."""

from __future__ import annotations

from array import array

import msgspec

from kvtier.page.status import Status
from kvtier.store.leases import Held


class Leading(msgspec.Struct, frozen=True):
    """Lengths of leading runs, in pages: in DRAM alone, and in DRAM or on SSD."""

    dram: int
    local: int


class Acquired(msgspec.Struct, frozen=True):
    """`held` are there, and leased, in the order of the keys whose status is OK. `moved[i]` names the node of a MOVED one.

    Pages and runs are the store's own and must only be read, and at once: a run may be told apart later.
    """

    lease_id: int  # 0 where nothing was leased
    statuses: list[Status]
    held: list[Held]
    moved: dict[int, str]
    retry_after_ms: float


class Reserved(msgspec.Struct, frozen=True):
    """One write for all pages whose status is OK, of which `offsets` has one each. BUSY: no room now."""

    write_id: int  # 0 where there is nothing to write
    statuses: list[Status]
    offsets: array[int]
    retry_after_ms: float


class Pinned(msgspec.Struct, frozen=True):
    """OK with a pin, or BUSY: over the cap, which has room for the first `pages` of them, or a page is not in DRAM yet; MISS: a
    page is not on this node."""

    status: Status
    pin_id: int = 0
    pages: int = 0
