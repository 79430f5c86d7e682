"""What agents' counters teach of restores: how fast each node's links moved bytes since the last report, for every worker
there."""

from __future__ import annotations

from costmodel.values import Tier
from kvtier.control.node_control import NodeReport
from router.fleet.fleet import Fleet
from router.tiers.tier_rows import Moved, moved

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
