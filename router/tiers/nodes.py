"""How every configured agent fares, asked every so often; and the way to ask one for something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from kvtier.control.node_control import NodeControl, NodeReport, NodeUnavailable
from router.clock import Clock

_log = structlog.get_logger(__name__)
_ASK_S = 2.0
_TELL_AGAIN_MS = 30_000.0


class Node(msgspec.Struct):
    """`report` is the last one, kept while the agent does not answer; `fault` is empty while it does."""

    control: NodeControl
    report: NodeReport | None = None
    heard_ms: float = 0.0
    fault: str = "not asked yet"
    told_ms: float = float("-inf")  # when the log last heard of a fault; -inf once there is none


class Nodes:
    """`start` and `close` (awaited) are its life."""

    def __init__(
        self, controls: Mapping[str, NodeControl], clock: Clock, heard: Callable[[NodeReport], None] = lambda _: None
    ) -> None:
        """`heard` is told every report."""
        self.by_name = {name: Node(control) for name, control in controls.items()}
        self.crashes = 0
        self._clock = clock
        self._heard = heard
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch(name, node), name=f"node {name}") for name, node in self.by_name.items()]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.by_name.values():
            await node.control.close()

    async def ask(self, name: str) -> None:
        """Ask one agent now."""
        node = self.by_name[name]
        try:
            report = await node.control.report()
        except NodeUnavailable as error:
            node.fault = str(error)
            self._tell(name, node)
        else:
            self._hear(name, node, report)

    def _hear(self, name: str, node: Node, report: NodeReport) -> None:
        if node.report is None or node.told_ms > float("-inf"):
            _log.info("node_ready", node=name)
        node.report, node.fault, node.heard_ms, node.told_ms = report, "", self._clock(), float("-inf")
        self._heard(report)

    def _tell(self, name: str, node: Node) -> None:
        """Also that somebody else is there: an agent of another node than the file says, or of another version."""
        now_ms = self._clock()
        if now_ms - node.told_ms >= _TELL_AGAIN_MS:
            node.told_ms = now_ms
            _log.warning("node_unreachable", node=name, fault=node.fault, tried_again_every_s=_ASK_S)

    async def _watch(self, name: str, node: Node) -> None:
        while True:
            try:
                await self.ask(name)
            except Exception:  # noqa: BLE001  the task root: a fault here must not end the watching
                self.crashes += 1
                _log.exception("node_watch_crashed", node=name)
            await asyncio.sleep(_ASK_S)
