"""A vLLM server's load from its Prometheus text, one report per engine index (its data-parallel rank). Pure."""

from __future__ import annotations

from engine_adapters.base import LoadReport
from engine_adapters.counts import count, rank_of
from engine_adapters.metrics_text import Metrics
from engine_adapters.vllm.discovery import CACHE_CONFIG, kv_tokens_capacity

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_USAGE = "vllm:kv_cache_usage_perc"  # a fraction, whatever its name says
_RANK = "engine"

SERIES = frozenset({_RUNNING, _WAITING, _USAGE, CACHE_CONFIG})


def load_reports(metrics: Metrics) -> tuple[LoadReport, ...]:
    """`metrics` must have been read with `SERIES`. Empty when none of its gauges is there."""
    running = metrics.by_rank(_RUNNING, _RANK)
    waiting = metrics.by_rank(_WAITING, _RANK)
    usage = metrics.by_rank(_USAGE, _RANK)
    capacity = {
        rank: kv_tokens_capacity(sample.labels)
        for sample in metrics.samples(CACHE_CONFIG)
        if (rank := rank_of(sample.labels.get(_RANK))) is not None
    }
    return tuple(
        LoadReport(
            dp_rank=rank,
            running_requests=count(running[rank]),
            waiting_requests=count(waiting.get(rank, 0)),
            kv_tokens_used=count(round(min(max(usage.get(rank, 0.0), 0.0), 1.0) * capacity.get(rank, 0))),
            kv_tokens_capacity=capacity.get(rank, 0),
        )
        for rank in sorted(running)
    )
