"""Bounds of what clients may pin, while agents take their time to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from costmodel.values import Tier
from kvtier.control.node_control import CutOrder, NodeReport, Pinned, PinOrder
from kvtier.index.events import BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import NodeKey
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.store.journal import event_id
from router.errors import NothingPinned, PinsFull, UnknownPin
from router.tiers.nodes import Nodes
from router.tiers.pin_book import PinBook

SPACE = PageSpace("m", "bfloat16", "page_first", 16)
DIGESTS = bytes(range(DIGEST_BYTES))


class SlowNode:
    """Pins nothing until it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.reached = asyncio.Event()
        self.let = asyncio.Event()

    async def report(self) -> NodeReport:
        return NodeReport("a", 1, {}, (SPACE,))

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        self.asked += 1
        self.reached.set()
        await self.let.wait()
        return [Pinned(Status.OK, self.asked, 1) for _ in orders]

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        return [True for _ in pins]

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def book_of(node: SlowNode, *, max_pins: int) -> tuple[PinBook, Nodes, BlockIndex]:
    """Over one node that has told of itself and holds the page."""
    index = BlockIndex(256, max_sources=2)
    index.apply(NodeKey("a"), BlocksStored((event_id(DIGESTS),), None, Tier.L3, 16), 0.0)
    nodes = Nodes({"a": node}, lambda: 0.0)
    await nodes.ask("a")
    return PinBook(nodes, lambda: 0.0, Random(1), max_pins=max_pins, max_ttl_s=60.0), nodes, index


async def test_pins_that_are_being_made_count_towards_the_bound() -> None:
    node = SlowNode()
    book, _, index = await book_of(node, max_pins=1)
    first = asyncio.create_task(book.add("first", DIGESTS, index, lambda space: True, 10.0))
    await asyncio.wait_for(node.reached.wait(), 10.0)
    with pytest.raises(PinsFull):
        await book.add("second", DIGESTS, index, lambda space: True, 10.0)
    node.let.set()
    pin = await first
    assert [each.id for each in book.listed()] == [pin.id]
    await book.remove(pin.id)
    assert (await book.add("third", DIGESTS, index, lambda space: True, 10.0)).nodes["a"].pages == 1


class FullNode(SlowNode):
    """May pin no more, of these `most` at most; it has pages in two spaces, of which one has none of these."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    async def report(self) -> NodeReport:
        return NodeReport("a", 1, {}, (SPACE, PageSpace("m", "bfloat16", "page_first", 64)))

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        full = orders[0].space.page_tokens == SPACE.page_tokens
        return [Pinned(Status.BUSY, 0, self.most) if full else Pinned(Status.MISS, 0, 0) for _ in orders]


@pytest.mark.parametrize(
    ("most", "told"),
    [(2, "with what is pinned there already"), (1, "the prompt's 2 pages are more than"), (0, "on their way to its DRAM")],
)
async def test_a_node_that_pins_nothing_says_whose_pages_are_too_many(most: int, told: str) -> None:
    digests = DIGESTS + DIGESTS[::-1]
    book, _, index = await book_of(FullNode(most), max_pins=2)
    index.apply(NodeKey("a"), BlocksStored((event_id(DIGESTS[::-1]),), event_id(DIGESTS), Tier.L3, 16), 0.0)
    with pytest.raises(NothingPinned, match=f"a BUSY .*{told}"):
        await book.add("full", digests, index, lambda space: True, 10.0)
    assert book.listed() == []


async def test_where_nothing_was_pinned_every_node_is_named_with_the_reason() -> None:
    book, nodes, _ = await book_of(SlowNode(), max_pins=2)
    nothing = BlockIndex(256, max_sources=2)
    with pytest.raises(NothingPinned, match=r"a MISS \(has none of it in DRAM\)"):
        await book.add("gone", DIGESTS, nothing, lambda space: True, 10.0)
    nodes.by_name["a"].fault = "connection refused"
    with pytest.raises(NothingPinned, match=r"a BUSY \(connection refused\)"):
        await book.add("away", DIGESTS, nothing, lambda space: True, 10.0)
    lonely = PinBook(Nodes({}, lambda: 0.0), lambda: 0.0, Random(1), max_pins=2, max_ttl_s=60.0)
    with pytest.raises(NothingPinned, match="no agent is followed"):
        await lonely.add("nowhere", DIGESTS, nothing, lambda space: True, 10.0)


class MortalNode(SlowNode):
    """Answers at once; another life of it counts its pins from 1 again."""

    def __init__(self) -> None:
        super().__init__()
        self.let.set()
        self.epoch = 1
        self.unpinned: list[int] = []

    async def report(self) -> NodeReport:
        return NodeReport("a", self.epoch, {}, (SPACE,))

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        self.unpinned += pins
        return [True for _ in pins]


async def test_what_an_agent_held_ends_with_its_life_and_its_number_is_another_s_then() -> None:
    node = MortalNode()
    book, nodes, index = await book_of(node, max_pins=2)
    pins = [await book.add(name, DIGESTS, index, lambda space: True, 10.0) for name in ("kept", "let go")]
    await book.remove(pins[1].id)
    assert node.unpinned == [2]
    node.epoch = 2
    await nodes.ask("a")
    held = book.get(pins[0].id).nodes["a"]
    assert (held.status, held.pages, held.fault) == (Status.MISS, 0, "its agent was restarted")
    await book.remove(pins[0].id)
    assert node.unpinned == [2]


class GrowingNode(MortalNode):
    """Has the same pages in two spaces, and one more once the first was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.index: BlockIndex | None = None

    async def report(self) -> NodeReport:
        return NodeReport("a", 1, {}, (SPACE, msgspec.structs.replace(SPACE, kv_dtype="float8")))

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        if self.index is not None:
            self.index.apply(NodeKey("a"), BlocksStored((event_id(DIGESTS[::-1]),), event_id(DIGESTS), Tier.L3, 16), 0.0)
        return await super().pin(orders)


@pytest.mark.parametrize(("grows", "pages", "unpinned"), [(True, 2, [1]), (False, 1, [2])])
async def test_of_two_spaces_of_a_node_one_alone_stays_pinned(grows: bool, pages: int, unpinned: list[int]) -> None:
    node = GrowingNode()
    book, _, index = await book_of(node, max_pins=2)
    node.index = index if grows else None
    pin = await book.add("both", DIGESTS + DIGESTS[::-1], index, lambda space: True, 10.0)
    assert (pin.pages, node.unpinned) == (pages, unpinned)


async def test_another_gateway_s_pins_are_unknown() -> None:
    book, nodes, index = await book_of(MortalNode(), max_pins=2)
    pin = await book.add("mine", DIGESTS, index, lambda space: True, 10.0)
    other = PinBook(nodes, lambda: 0.0, Random(2), max_pins=2, max_ttl_s=60.0)
    await other.add("theirs", DIGESTS, index, lambda space: True, 10.0)
    with pytest.raises(UnknownPin):
        other.get(pin.id)
