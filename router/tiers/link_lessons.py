"""What agents' counters teach of restores: how fast each node's links moved bytes since the last report, for every worker
there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from costmodel.values import Tier
from kvtier.control.node_control import NodeReport
from router.fleet.fleet import Fleet

_BYTES, _BUSY = "moved_bytes:", "moved_busy_ms:"
_TIERS = {tier.name: tier for tier in (Tier.L3, Tier.L4)}


class Moved(NamedTuple):
    """Since the agent's start. `source`: "" for the node's own."""

    tier: Tier
    source: str
    size_bytes: float
    busy_ms: float


_NOTHING = Moved(Tier.L3, "", 0.0, 0.0)


class LinkLessons:
    """`heard` with every report of every agent. What one has counted before its first report here is a lesson as well."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._before: dict[str, NodeReport] = {}

    def heard(self, report: NodeReport) -> None:
        before = self._before.get(report.node)
        self._before[report.node] = report
        same_life = before is not None and before.epoch == report.epoch
        known = {each[:2]: each for each in moved(before.numbers)} if before is not None and same_life else {}
        workers = [worker for worker in self._fleet.workers if worker.node == report.node]
        for each in moved(report.numbers):
            last = known.get(each[:2], _NOTHING)
            for worker in workers:
                size_bytes, busy_ms = each.size_bytes - last.size_bytes, each.busy_ms - last.busy_ms
                worker.links.told(each.tier, each.source, size_bytes, busy_ms)


def moved(numbers: dict[str, float]) -> Iterator[Moved]:
    """By the agents' names `moved_bytes:WAY` and `moved_busy_ms:WAY`; ways are `L3`, `L3:NODE` and `L4`."""
    for name, size_bytes in numbers.items():
        if name.startswith(_BYTES):
            way = name.removeprefix(_BYTES)
            tier, _, source = way.partition(":")
            busy_ms = numbers.get(_BUSY + way)
            if tier in _TIERS and busy_ms is not None:
                yield Moved(_TIERS[tier], source, size_bytes, busy_ms)
