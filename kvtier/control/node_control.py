"""What a gateway asks of one node's agent beside following its events: how it fares, pins, restore cuts. A seam, two wires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from kvtier.page.space import PageSpace
from kvtier.page.status import Status


class NodeUnavailable(Exception):
    """The agent cannot be reached, did not answer in time, or refused."""


class NodeReport(msgspec.Struct, frozen=True):
    """Counters and gauges by the agent's own names, and the whole page spaces it has met."""

    node: str
    epoch: int
    numbers: dict[str, float]
    spaces: tuple[PageSpace, ...]


class PinOrder(NamedTuple):
    """Pages of one shard, 32 bytes of digest each, joined."""

    space: PageSpace
    digests: bytes
    ttl_ms: float


class Pinned(NamedTuple):
    """All pages of the order or none: OK: `pin` holds them; MISS: one is not in DRAM; BUSY: that many may not be
    pinned now, and of these the first `pages` at most where nothing else is (0: also where one is on its way to DRAM)."""

    status: Status
    pin: int
    pages: int


class CutOrder(NamedTuple):
    """Until `ttl_ms` have passed, `worker` restores nothing from the page of `digest` on."""

    worker: str
    digest: bytes
    ttl_ms: float


class NodeControl(Protocol):
    """Every call has its deadline, and may raise `NodeUnavailable`."""

    async def report(self) -> NodeReport: ...

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]: ...

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        """False for those that had ended before."""
        ...

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None: ...

    async def close(self) -> None: ...
