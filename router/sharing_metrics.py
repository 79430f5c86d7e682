"""What is shared with other gateways, by pool, as Prometheus families made at scrape time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.sharing import Sharing


class SharingCollector(Collector):
    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def collect(self) -> Iterator[Metric]:
        recalls = CounterMetricFamily("loadback_shared_recalls", "Prompts looked up at Redis", labels=["pool", "outcome"])
        flushes = CounterMetricFamily("loadback_shared_flushes", "Batches told to Redis", labels=["pool", "outcome"])
        resyncs = CounterMetricFamily("loadback_shared_resyncs", "Times that Redis had lost what it was told", labels=["pool"])
        overflows = CounterMetricFamily("loadback_shared_overflows", "Times that too much waited to be told", labels=["pool"])
        waiting = GaugeMetricFamily("loadback_shared_waiting", "Changes that wait to be told", labels=["pool"])
        for pool, sharer in self._sharing.sharers.items():
            counts, outbox = sharer.counters, sharer.outbox
            recalls.add_metric([pool, "new"], counts.recalled)
            recalls.add_metric([pool, "nothing"], counts.recalls - counts.recalled - counts.recalls_failed)
            recalls.add_metric([pool, "failed"], counts.recalls_failed)
            flushes.add_metric([pool, "told"], counts.flushes)
            flushes.add_metric([pool, "failed"], counts.flushes_failed + counts.crashes)
            resyncs.add_metric([pool], counts.resyncs)
            overflows.add_metric([pool], outbox.overflows)
            waiting.add_metric([pool], len(outbox))
        yield from (recalls, flushes, resyncs, overflows, waiting)
