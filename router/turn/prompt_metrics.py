"""Derived prompts and the event loop's lag as Prometheus families, made when somebody scrapes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.loop_lag import LoopLag
from router.prompts.pool_prompts import PoolPrompts
from router.prompts.trust import Level

_LEVELS = tuple(Level)


class PromptCollector(Collector):
    def __init__(self, pools: Collection[PoolPrompts], loop_lag: LoopLag) -> None:
        self._pools = pools
        self._loop_lag = loop_lag

    def collect(self) -> Iterator[Metric]:
        yield from self._lag_families()
        yield from self._count_families()
        yield from self._cache_families()
        yield from self._trust_families()

    def _lag_families(self) -> Iterator[Metric]:
        lag = HistogramMetricFamily("loadback_loop_lag_ms", "Delay of the event loop's timers")
        lag.add_metric([], *self._loop_lag.histogram.cumulative())
        worst = GaugeMetricFamily("loadback_loop_lag_worst_ms", "Longest delay since the last scrape")
        worst.add_metric([], self._loop_lag.take_worst_ms())
        yield from (lag, worst)

    def _count_families(self) -> Iterator[Metric]:
        made = CounterMetricFamily("loadback_prompts", "Prompts derived", labels=["pool", "level"])
        fallbacks = CounterMetricFamily("loadback_prompt_fallbacks", "Prompts not gone on with", labels=["pool", "cause"])
        compared = CounterMetricFamily("loadback_prompt_compared", "Prompts compared", labels=["pool", "with", "verdict"])
        forwarded = CounterMetricFamily("loadback_prompt_forwarded", "Turns sent with token ids", labels=["pool"])
        cpu = GaugeMetricFamily("loadback_prompt_cpu_ms", "CPU of one prompt, moving average", labels=["pool"])
        pending = GaugeMetricFamily("loadback_prompt_pending", "Prompts that wait or are made", labels=["pool"])
        for prompts in self._pools:
            counts = prompts.counts
            for level, count in counts.made.items():
                made.add_metric([prompts.name, level], count)
            for cause, count in counts.fallbacks.items():
                fallbacks.add_metric([prompts.name, cause], count)
            for (with_what, verdict), count in counts.compared.items():
                compared.add_metric([prompts.name, with_what, verdict], count)
            forwarded.add_metric([prompts.name], counts.forwarded)
            cpu.add_metric([prompts.name], counts.cpu_ms)
            pending.add_metric([prompts.name], prompts.pending)
        yield from (made, fallbacks, compared, forwarded, cpu, pending)

    def _cache_families(self) -> Iterator[Metric]:
        begun = CounterMetricFamily("loadback_prompt_begun", "Prompts by what they were made from", labels=["pool", "from"])
        used = GaugeMetricFamily("loadback_prompt_bytes", "Memory of remembered prompts", labels=["pool"])
        threads = GaugeMetricFamily("loadback_prompt_threads", "Remembered prompts", labels=["pool"])
        forgotten = CounterMetricFamily("loadback_prompt_forgotten", "Prompts not kept, or no more", labels=["pool", "cause"])
        for prompts in self._pools:
            if prompts.reader is None:
                continue
            cache, name = prompts.reader.cache, prompts.name
            begun.add_metric([name, "thread"], cache.counts.continued)
            begun.add_metric([name, "alike"], cache.counts.begun_alike)
            begun.add_metric([name, "nothing"], cache.counts.cold)
            used.add_metric([name], cache.used_bytes)
            threads.add_metric([name], len(cache))
            forgotten.add_metric([name, "evicted"], cache.counts.evicted)
            forgotten.add_metric([name, "too_large"], cache.counts.refused)
        yield from (begun, used, threads, forgotten)

    def _trust_families(self) -> Iterator[Metric]:
        level = GaugeMetricFamily(
            "loadback_prompt_level", "0 exact, 1 tokenised whole, 2 by lineage", labels=["pool", "model", "path"]
        )
        for prompts in self._pools:
            for model, path, trust in prompts.models():
                level.add_metric([prompts.name, model, path], _LEVELS.index(trust.level))
        yield level
