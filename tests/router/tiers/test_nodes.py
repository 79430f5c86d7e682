"""What the log hears of agents that do not answer as the file says."""

from __future__ import annotations

from collections.abc import Sequence

from structlog.testing import capture_logs

from kvtier.control.node_control import CutOrder, NodeReport, NodeUnavailable, Pinned, PinOrder
from router.tiers.nodes import Nodes


class Control:
    """An agent that says what it is told to."""

    def __init__(self) -> None:
        self.fault = ""

    async def report(self) -> NodeReport:
        if self.fault:
            raise NodeUnavailable(self.fault)
        return NodeReport("a", 1, {}, ())

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        raise NodeUnavailable(self.fault)

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        raise NodeUnavailable(self.fault)

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None:
        raise NodeUnavailable(self.fault)

    async def close(self) -> None:
        return


async def test_an_agent_of_another_node_is_told_now_and_then() -> None:
    now_ms = 0.0
    control = Control()
    nodes = Nodes({"a": control}, lambda: now_ms)
    control.fault = "there is b, not a"
    with capture_logs() as logs:
        for _ in range(31):
            await nodes.ask("a")
            now_ms += 2_000.0
    assert [(log["event"], log["node"], log["fault"]) for log in logs] == [("node_unreachable", "a", control.fault)] * 3


async def test_a_node_that_was_back_is_told_again_at_once() -> None:
    control = Control()
    nodes = Nodes({"a": control}, lambda: 5.0)
    with capture_logs() as logs:
        for fault in ("gone", "gone", "", "", "gone"):
            control.fault = fault
            await nodes.ask("a")
    assert [log["event"] for log in logs] == ["node_unreachable", "node_ready", "node_unreachable"]


async def test_a_node_that_answers_is_told_once() -> None:
    nodes = Nodes({"a": Control()}, lambda: 5.0)
    with capture_logs() as logs:
        for _ in range(3):
            await nodes.ask("a")
    assert [(log["event"], log["log_level"], log["node"]) for log in logs] == [("node_ready", "info", "a")]
