"""From what agents tell to rows of tiers and links."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.values import Tier
from kvtier.control.node_control import CutOrder, NodeReport, NodeUnavailable, Pinned, PinOrder
from router.tiers.nodes import Nodes
from router.tiers.tier_rows import LinkRow, TierRow, link_rows, tier_rows

NUMBERS = {
    "dram_bytes": 100.0,
    "dram_used_bytes": 60.0,
    "dram_hits": 7.0,
    "evicted": 3.0,
    "corrupt_dram": 1.0,
    "corrupt_received": 2.0,
    "leases": 4.0,
    "pinned_bytes": 20.0,
    "ssd_bytes": 1000.0,
    "ssd_live_bytes": 500.0,
    "ssd_hits": 5.0,
    "ssd_forgotten": 6.0,
    "corrupt_ssd": 1.0,
    "moved_bytes:L3:b": 125.0,
    "moved_busy_ms:L3:b": 10.0,
    "moved_bytes:L3": 9.0,
    "moved_busy_ms:L3": 1.0,
}


class FakeNode:
    """Answers with a report, or not at all."""

    def __init__(self, numbers: dict[str, float] | None) -> None:
        self.numbers = numbers

    async def report(self) -> NodeReport:
        if self.numbers is None:
            raise NodeUnavailable("gone")
        return NodeReport("a", 1, self.numbers, ())

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        raise NotImplementedError

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        raise NotImplementedError

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def test_rows_of_nodes_that_have_answered() -> None:
    silent, dram_only = FakeNode(None), FakeNode({**NUMBERS, "ssd_bytes": 0.0})
    nodes = Nodes({"a": FakeNode(NUMBERS), "b": dram_only, "c": silent}, lambda: 5.0)
    for name in nodes.by_name:
        await nodes.ask(name)
    rows = list(tier_rows(nodes, {"a": {Tier.L3: 6, Tier.L4: 9}}))
    assert rows == [
        TierRow("a", "L3", 100.0, 60.0, 6, 7.0, 3.0, 3.0, 4.0, 20.0),
        TierRow("a", "L4", 1000.0, 500.0, 9, 5.0, 6.0, 1.0),
        TierRow("b", "L3", 100.0, 60.0, 0, 7.0, 3.0, 3.0, 4.0, 20.0),
    ]
    assert next(link_rows(nodes)) == LinkRow("a", "b", 12.5), "a node's own memory is no link"
    assert {name: node.fault for name, node in nodes.by_name.items()} == {"a": "", "b": "", "c": "gone"}


async def test_the_last_report_is_kept_while_an_agent_is_away() -> None:
    fake = FakeNode(NUMBERS)
    nodes = Nodes({"a": fake}, lambda: 5.0)
    await nodes.ask("a")
    fake.numbers = None
    await nodes.ask("a")
    assert (nodes.by_name["a"].fault, len(list(tier_rows(nodes, {})))) == ("gone", 2)
