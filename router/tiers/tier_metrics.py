"""The tiers of every node as Prometheus families, made at scrape time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.tiers.build import Tiers
from router.tiers.tier_rows import link_rows, tier_rows

_LABELS = ["node", "tier"]
_GAUGES = (
    ("loadback_tier_capacity_bytes", "Size of a node's tier", "capacity_bytes"),
    ("loadback_tier_used_bytes", "Bytes of pages in it", "used_bytes"),
    ("loadback_tier_pages", "Whole pages in it that the gateway follows", "pages"),
    ("loadback_tier_leases", "Read leases on it", "leases"),
    ("loadback_tier_pinned_bytes", "Bytes of pages that are pinned in it", "pinned_bytes"),
)
_COUNTERS = (
    ("loadback_tier_hits", "Pages that were looked for and found in it", "hits"),
    ("loadback_tier_evictions", "Pages that left it to make room", "evictions"),
    ("loadback_tier_checksum_failures", "Pages whose bytes were not what was stored; never served", "checksum_failures"),
)


class TierCollector(Collector):
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def collect(self) -> Iterator[Metric]:
        rows = list(tier_rows(self._tiers.nodes, self._tiers.pages()))
        for name, text, field in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for row in rows:
                gauge.add_metric([row.node, row.tier], getattr(row, field))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for row in rows:
                counter.add_metric([row.node, row.tier], getattr(row, field))
            yield counter
        yield from self._node_families()

    def _node_families(self) -> Iterator[Metric]:
        link = GaugeMetricFamily(
            "loadback_link_bytes_per_second", "Bandwidth of pages between nodes", labels=["node", "source"]
        )
        for row in link_rows(self._tiers.nodes):
            link.add_metric([row.node, row.source], row.bytes_per_ms * 1000)
        yield link
        up = GaugeMetricFamily("loadback_node_up", "1 while the node's agent answers", labels=["node"])
        for name, node in self._tiers.nodes.by_name.items():
            up.add_metric([name], float(not node.fault))
        yield up
        live = GaugeMetricFamily("loadback_node_followed", "1 while what the node holds is known and believed", labels=["node"])
        gaps = CounterMetricFamily("loadback_node_event_gaps", "Gaps in what the node told of its pages", labels=["node"])
        for status in self._tiers.followers.status():
            live.add_metric([status.node], float(status.live))
            gaps.add_metric([status.node], status.gaps)
        yield from (live, gaps)
        questions = CounterMetricFamily("loadback_umbp_questions", "Turns for which a master was asked", labels=["outcome"])
        if self._tiers.consult is not None:
            for outcome, count in msgspec.structs.asdict(self._tiers.consult.counters).items():
                questions.add_metric([outcome], count)
        yield questions
        yield GaugeMetricFamily("loadback_pins", "Pins that clients hold", value=len(self._tiers.pins.listed()))
