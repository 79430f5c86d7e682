"""What was learned of workers, and how well it predicts, as Prometheus families made at scrape time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.fleet.drift import judged
from router.fleet.fleet import Fleet


class CalibrationCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        labels = ["pool", "worker", "term"]
        error = GaugeMetricFamily("loadback_prediction_error", "Median relative error of predicted times", labels=labels)
        drifting = GaugeMetricFamily("loadback_prediction_drifting", "1 while it has lately grown by far", labels=labels)
        for each in judged(self._fleet):
            named = [each.pool, each.worker, each.term]
            error.add_metric(named, each.accuracy.error or 0.0)
            drifting.add_metric(named, float(each.accuracy.drifting))
        yield from (error, drifting, self._links())

    def _links(self) -> Metric:
        family = GaugeMetricFamily(
            "loadback_restore_bytes_per_second", "Bandwidth of restores", labels=["pool", "worker", "tier", "source"]
        )
        for pool in self._fleet.pools.values():
            for worker in pool.workers.values():
                for leg in worker.restoring:
                    named = [pool.name, worker.worker_id, leg.tier.name, leg.source]
                    family.add_metric(named, leg.link.bytes_per_ms * 1000)
        return family
