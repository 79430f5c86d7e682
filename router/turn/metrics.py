"""Counters of the hot path as plain numbers, turned into Prometheus families only when somebody scrapes.

Every metric name of the gateway stands in this module or in `prompt_metrics`; `docs/metrics.md` lists them and a test compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.fleet.fleet import Fleet
from router.fleet.hold import Hold
from router.fleet.worker import WorkerState
from router.histogram import Histogram
from router.turn.record import TurnRecord


class TurnMetrics:
    """Counts of finished turns. Labels stay few: outcome, first or later call, retry cause, tier."""

    def __init__(self) -> None:
        self.turns: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.cached_tokens: Counter[str] = Counter()
        self.cached_by_tier: Counter[str] = Counter()
        self.completion_tokens = 0
        self.ttft = {"first": Histogram(), "later": Histogram()}
        self.gateway = Histogram()
        self.ttft_error_ms = Histogram()
        self.keep_alives = 0
        self.shed: Counter[str] = Counter()  # by class
        self.request_faults = 0  # turns that several workers answered with a 5xx
        self.crashes = 0  # turns that hit a fault of the gateway in a callback

    def kept_alive(self) -> None:
        self.keep_alives += 1

    def finished(self, record: TurnRecord) -> None:
        call = "first" if record.first_call else "later"
        self.turns[(record.outcome.value, call)] += 1
        if record.gateway_ms is not None:
            self.gateway.observe(record.gateway_ms)
        if record.ttft_ms is not None:
            self.ttft[call].observe(record.ttft_ms)
            if record.decision:
                self.ttft_error_ms.observe(abs(record.ttft_ms - record.decision.chosen.terms.ttft_ms))
        self._count_tokens(record, call)

    def _count_tokens(self, record: TurnRecord, call: str) -> None:
        facts = record.facts
        if facts is None:
            return
        self.prompt_tokens[call] += facts.prompt_tokens
        self.completion_tokens += facts.completion_tokens
        self.cached_tokens[call] += facts.cached_tokens or 0
        for tier, tokens in (facts.cached_by_tier or {}).items():
            self.cached_by_tier[tier.name] += tokens


class GatewayCollector(Collector):
    """Reads all of it at scrape time. `holds`: by pool; `crashes`: the server's own count of handlers that raised."""

    def __init__(self, metrics: TurnMetrics, fleet: Fleet, holds: Mapping[str, Hold], crashes: Callable[[], int]) -> None:
        self._crashes = crashes
        self._holds = holds
        self._metrics = metrics
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        yield from self._turn_families()
        yield from self._histograms()
        yield from self._fleet_families()
        yield from self._hold_families()

    def _turn_families(self) -> Iterator[Metric]:
        counts = self._metrics
        yield counter("loadback_turns", "Turns by outcome and call", ["outcome", "call"], counts.turns)
        yield counter("loadback_retries", "Tries repeated elsewhere, by cause", ["cause"], single(counts.retries))
        yield counter("loadback_prompt_tokens", "Prompt tokens by call", ["call"], single(counts.prompt_tokens))
        yield counter("loadback_cached_tokens", "Prompt tokens served from cache", ["call"], single(counts.cached_tokens))
        yield counter("loadback_tier_tokens", "Cached prompt tokens by tier", ["tier"], single(counts.cached_by_tier))
        yield counter("loadback_completion_tokens", "Completion tokens", [], {(): counts.completion_tokens})
        yield counter(
            "loadback_handler_crashes", "Requests that hit a fault of the gateway", [], {(): self._crashes() + counts.crashes}
        )
        yield counter("loadback_request_faults", "Turns that several workers failed", [], {(): counts.request_faults})
        yield counter("loadback_shed", "Turns refused since they would be late", ["class"], single(counts.shed))
        yield counter("loadback_keep_alives", "SSE keep-alives sent", [], {(): counts.keep_alives})

    def _histograms(self) -> Iterator[Metric]:
        ttft = HistogramMetricFamily("loadback_ttft_ms", "Dispatch to first real event", labels=["call"])
        for call, histogram in self._metrics.ttft.items():
            ttft.add_metric([call], *histogram.cumulative())
        yield ttft
        for name, text, histogram in (
            ("loadback_gateway_ms", "Arrival of the body to dispatch", self._metrics.gateway),
            ("loadback_ttft_error_ms", "Absolute difference of predicted and actual TTFT", self._metrics.ttft_error_ms),
        ):
            family = HistogramMetricFamily(name, text)
            family.add_metric([], *histogram.cumulative())
            yield family

    def _hold_families(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("loadback_held_turns", "Turns that wait for room at their worker", labels=["pool"])
        held = CounterMetricFamily("loadback_turns_held", "Turns that waited for room at their worker", labels=["pool"])
        seconds = CounterMetricFamily("loadback_held_seconds", "How long they waited", labels=["pool"])
        for pool, hold in self._holds.items():
            waiting.add_metric([pool], hold.waiting)
            held.add_metric([pool], hold.held)
            seconds.add_metric([pool], hold.held_ms / 1000)
        yield from (waiting, held, seconds)

    def _fleet_families(self) -> Iterator[Metric]:
        inflight = GaugeMetricFamily("loadback_worker_inflight", "Turns in flight", labels=["pool", "worker", "role"])
        ready = GaugeMetricFamily("loadback_worker_ready", "1 when the worker takes turns", labels=["pool", "worker", "role"])
        waiting = GaugeMetricFamily("loadback_queue_waiting", "Turns that wait for a permit", labels=["pool"])
        running = GaugeMetricFamily("loadback_turns_running", "Turns that hold a permit", labels=["pool"])
        entries = GaugeMetricFamily("loadback_index_entries", "Entries of the index", labels=["pool", "index"])
        for pool in self._fleet.pools.values():
            waiting.add_metric([pool.name], pool.admission.waiting)
            running.add_metric([pool.name], pool.admission.running)
            entries.add_metric([pool.name, "blocks"], pool.blocks.entries)
            entries.add_metric([pool.name, "lineage"], pool.lineage.entries)
            for worker in pool.workers.values():
                labels = [pool.name, worker.worker_id, worker.role.value]
                inflight.add_metric(labels, worker.inflight)
                ready.add_metric(labels, float(worker.state is WorkerState.READY))
        yield from (inflight, ready, waiting, running, entries)


def single(counts: Counter[str]) -> dict[tuple[str, ...], int]:
    return {(label,): value for label, value in counts.items()}


def counter(name: str, text: str, labels: list[str], values: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
