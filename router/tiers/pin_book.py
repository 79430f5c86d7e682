"""Pins that clients asked for: pages that agents keep in DRAM for a while. Bounded in number and in time.

An agent has a cap of its own on what is pinned, and ends every pin by itself: what is lost here costs room until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from costmodel.values import Tier
from kvtier.control.node_control import NodeUnavailable, Pinned, PinOrder
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import NodeKey
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.store.journal import event_id
from router.clock import Clock
from router.errors import NothingPinned, PinsFull, UnknownNode, UnknownPin
from router.prefetch.node_agents import shards_of
from router.tiers.nodes import Node, Nodes

_STEP_BYTES = 1024 * DIGEST_BYTES


class Held(msgspec.Struct, frozen=True):
    """What one node said: OK: it holds `pages` leading pages; else it holds none of them, and why. `pins` mean nothing to
    another life of its agent than that of `epoch`."""

    status: Status
    pages: int = 0
    pins: tuple[int, ...] = ()
    fault: str = ""
    epoch: int = 0


class Pin(msgspec.Struct, frozen=True):
    id: str
    subject: str
    expires_ms: float
    nodes: dict[str, Held]

    @property
    def pages(self) -> int:
        """The leading ones that some node holds."""
        return max(held.pages for held in self.nodes.values())


class PinBook:
    """`max_pins` and `max_ttl_s` bound it; `serves` says whether a page space is one of the prompt's pool. Ids tell this book's
    pins from those of other gateways and lives."""

    def __init__(self, nodes: Nodes, clock: Clock, rng: Random, *, max_pins: int, max_ttl_s: float) -> None:
        self.max_ttl_s = max_ttl_s
        self._nodes = nodes
        self._clock = clock
        self._max_pins = max_pins
        self._pins: dict[str, Pin] = {}
        self._adding = 0  # whose agents have not answered yet: they count towards the bound
        self._prefix = f"pin-{rng.getrandbits(24):06x}-"
        self._next = 1

    async def add(
        self,
        subject: str,
        digests: bytes,
        index: BlockIndex,
        serves: Callable[[PageSpace], bool],
        ttl_s: float,
        names: Sequence[str] = (),
    ) -> Pin:
        """Pin the leading pages that each of `names` has, or every node. Raises `PinsFull`, `UnknownNode`,
        `NothingPinned`."""
        if len(self.listed()) + self._adding >= self._max_pins:
            raise PinsFull(f"{self._max_pins} pins are held, as many as pins.max_pins allows")
        for name in names:
            if name not in self._nodes.by_name:
                raise UnknownNode(f"no node {name!r}; GET /admin/tiers lists them", param="node")
        ttl_ms = min(ttl_s, self.max_ttl_s) * 1000
        chosen = tuple(names or self._nodes.by_name)
        self._adding += 1
        try:
            held = await asyncio.gather(*(self._pin_at(name, digests, index, serves, ttl_ms) for name in chosen))
        finally:
            self._adding -= 1
        nodes = dict(zip(chosen, held, strict=True))
        if not any(each.pages for each in held):
            raise NothingPinned(f"nothing was pinned: {_why(nodes)}")
        pin = Pin(f"{self._prefix}{self._next}", subject, self._clock() + ttl_ms, nodes)
        self._next += 1
        self._pins[pin.id] = pin
        return pin

    def listed(self) -> list[Pin]:
        """As far as is known now: what an agent held has ended with its life."""
        now_ms = self._clock()
        self._pins = {pin.id: self._still(pin) for pin in self._pins.values() if pin.expires_ms > now_ms}
        return list(self._pins.values())

    def get(self, pin_id: str) -> Pin:
        """Raises `UnknownPin`."""
        self.listed()
        if pin_id not in self._pins:
            raise UnknownPin(f"no pin {pin_id!r}: it never was, or has ended")
        return self._pins[pin_id]

    async def remove(self, pin_id: str) -> Pin:
        """Raises `UnknownPin`. An agent that does not answer ends it by its own time."""
        pin = self.get(pin_id)
        del self._pins[pin_id]
        await asyncio.gather(*(self._unpin_at(name, held) for name, held in pin.nodes.items()))
        return pin

    def _still(self, pin: Pin) -> Pin:
        reports = {name: self._nodes.by_name[name].report for name, held in pin.nodes.items() if held.pins}
        lost = [name for name, report in reports.items() if report is not None and report.epoch != pin.nodes[name].epoch]
        if not lost:
            return pin
        ended = dict.fromkeys(lost, Held(Status.MISS, fault="its agent was restarted"))
        return msgspec.structs.replace(pin, nodes=pin.nodes | ended)

    async def _pin_at(
        self, name: str, digests: bytes, index: BlockIndex, serves: Callable[[PageSpace], bool], ttl_ms: float
    ) -> Held:
        node = self._nodes.by_name[name]
        if node.report is None or node.fault:
            return Held(Status.BUSY, fault=node.fault)
        best = Held(Status.MISS)
        for space in filter(serves, node.report.spaces):
            held = await self._pin_space(node, name, space, digests[: await leading_bytes(name, digests, index)], ttl_ms)
            best, other = sorted((best, held), key=_worth, reverse=True)
            await self._unpin_at(name, other)
        return best

    async def _pin_space(self, node: Node, name: str, space: PageSpace, digests: bytes, ttl_ms: float) -> Held:
        """Every shard of the space or none."""
        if not digests or node.report is None:
            return Held(Status.MISS)
        epoch = node.report.epoch
        try:
            pinned = await node.control.pin([PinOrder(shard, digests, ttl_ms) for shard in shards_of(space)])
        except NodeUnavailable as error:
            return Held(Status.BUSY, fault=str(error))
        pins = tuple(each.pin for each in pinned if each.status is Status.OK)
        failed = next((each for each in pinned if each.status is not Status.OK), None)
        held = Held(Status.OK, len(digests) // DIGEST_BYTES, pins, epoch=epoch)
        if failed is None:
            return held
        await self._unpin_at(name, held)
        return Held(failed.status, fault=_refusal(failed, held.pages))

    async def _unpin_at(self, name: str, held: Held) -> None:
        node = self._nodes.by_name[name]
        if not held.pins or node.report is None or node.report.epoch != held.epoch:
            return
        try:
            await node.control.unpin(held.pins)
        except NodeUnavailable as error:
            node.fault = str(error)


def _worth(held: Held) -> tuple[int, bool]:
    return held.pages, held.status is not Status.MISS


def _refusal(refused: Pinned, pages: int) -> str:
    """Why an agent did not pin `pages` pages; empty where it has them no more."""
    if refused.status is not Status.BUSY:
        return ""
    if not refused.pages:
        return "some of them are on their way to its DRAM, or its dram.max_pinned_share allows none; ask again"
    if refused.pages < pages:
        return f"the prompt's {pages} pages are more than its dram.max_pinned_share allows: {refused.pages} of them at most"
    return "with what is pinned there already they are more than its dram.max_pinned_share allows"


def _why(nodes: Mapping[str, Held]) -> str:
    told = [f"{name} {held.status.name} ({held.fault or 'has none of it in DRAM'})" for name, held in nodes.items()]
    return "; ".join(told) or "no agent is followed (`agents`)"


async def leading_bytes(node: str, digests: bytes, index: BlockIndex) -> int:
    """How much of `digests` names pages that a node is known to have in DRAM, from the first on."""
    sources = [source for source in index.sources if isinstance(source, NodeKey) and source.node == node]
    at = 0
    while at < len(digests):
        if at % _STEP_BYTES == 0:
            await asyncio.sleep(0)  # others' turn
        block = event_id(digests[at : at + DIGEST_BYTES])
        if not any(index.holds(source, block, Tier.L3) for source in sources):
            break
        at += DIGEST_BYTES
    return at
