"""What prefetch has done, by trigger, as Prometheus families made at scrape time; and as plain data for the admin API."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvtier.prefetch.tally import Tally
from router.prefetch.prefetcher import Prefetcher

_BYTES = (
    ("planned", "planned_bytes"),
    ("moved", "moved_bytes"),
    ("useful", "useful_bytes"),
    ("wasted", "wasted_bytes"),
    ("late", "late_bytes"),
    ("warmed", "warmed_bytes"),
    ("warm_wasted", "warm_wasted_bytes"),
    ("recalled", "recalled_bytes"),
    ("recall_wasted", "recall_wasted_bytes"),
    ("dry", "dry_bytes"),
)


class PrefetchCollector(Collector):
    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher

    def collect(self) -> Iterator[Metric]:
        planner = self._prefetcher.planner
        size = CounterMetricFamily("loadback_prefetch_bytes", "KV bytes by what became of them", labels=["trigger", "kind"])
        saved = CounterMetricFamily("loadback_prefetch_saved_ms", "Predicted ms saved for turns", labels=["trigger"])
        added = CounterMetricFamily("loadback_prefetch_added_ms", "Predicted ms that unused jobs cost", labels=["trigger"])
        jobs = CounterMetricFamily("loadback_prefetch_jobs", "Ended jobs by their end", labels=["trigger", "state"])
        for trigger, tally in planner.tallies.items():
            for kind, value in bytes_of(tally).items():
                size.add_metric([trigger, kind], value)
            saved.add_metric([trigger], tally.saved_ms)
            added.add_metric([trigger], tally.added_ms)
            for state, count in tally.jobs.items():
                jobs.add_metric([trigger, state], count)
        faults = CounterMetricFamily("loadback_prefetch_faults", "Faults of the gateway while prefetching")
        faults.add_metric([], self._prefetcher.crashes + self._prefetcher.executor.crashes + self._prefetcher.dropped)
        refused = CounterMetricFamily("loadback_prefetch_leases_refused", "Ready jobs whose pages their node would not hold")
        refused.add_metric([], self._prefetcher.executor.leases_refused)
        sizes = CounterMetricFamily("loadback_prefetch_sizes_refused", "Stages whose bytes, as told, cannot be")
        sizes.add_metric([], self._prefetcher.executor.sizes_refused)
        active = GaugeMetricFamily("loadback_prefetch_active", "Jobs that run")
        active.add_metric([], planner.active_jobs)
        watched = GaugeMetricFamily("loadback_prefetch_threads", "Threads whose return is awaited")
        watched.add_metric([], planner.watched_threads)
        yield from (size, saved, added, jobs, faults, refused, sizes, active, watched)


def bytes_of(tally: Tally) -> dict[str, int]:
    return {kind: getattr(tally, field) for kind, field in _BYTES}


def prefetch_view(prefetcher: Prefetcher) -> dict[str, object]:
    """For `/admin/tiers`."""
    planner = prefetcher.planner
    return {
        "mode": planner.params.mode,
        "active_jobs": planner.active_jobs,
        "watched_threads": planner.watched_threads,
        "leases_refused": prefetcher.executor.leases_refused,
        "triggers": {
            trigger: {
                **{f"{kind}_bytes": value for kind, value in bytes_of(tally).items()},
                "saved_ms": round(tally.saved_ms, 1),
                "added_ms": round(tally.added_ms, 1),
                "jobs": dict(tally.jobs),
            }
            for trigger, tally in planner.tallies.items()
        },
    }
