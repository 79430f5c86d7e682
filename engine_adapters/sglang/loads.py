"""A SGLang server's load, one report per data-parallel rank, from whichever of three generations it serves. Pure.

`/v1/loads` (current) tells everything and carries the cumulative counters from which prefill rates are fitted; `/get_load`
tells requests and tokens; `/metrics` has the same gauges as text.
"""

from __future__ import annotations

import msgspec

from engine_adapters.base import LoadReport
from engine_adapters.control import decode
from engine_adapters.counts import count, is_rank, total
from engine_adapters.metrics_text import Metrics

_GIB = 1 << 30  # the engine computes its "gb_s" in binary units
_MS_PER_S = 1e3
_MAX_GIB_S = 1e6  # no link is faster
_MAX_LATENCY_MS = 1e9


class _Disaggregation(msgspec.Struct, frozen=True):
    kv_transfer_speed_gb_s: float = 0.0
    kv_transfer_latency_ms: float = 0.0


class _Load(msgspec.Struct, frozen=True):
    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int | None = None
    num_used_tokens: int = 0
    max_total_num_tokens: int = 0
    max_running_requests: int = 0
    total_prefill_uncached_tokens: int | None = None
    total_prefill_busy_us: int | None = None
    disaggregation: _Disaggregation | None = None


class _Loads(msgspec.Struct, frozen=True):
    loads: tuple[_Load, ...] = ()


class _OldLoad(msgspec.Struct, frozen=True):
    dp_rank: int = 0
    num_reqs: int = 0
    num_waiting_reqs: int = 0
    num_tokens: int = 0


_RUNNING = "sglang:num_running_reqs"
_QUEUED = "sglang:num_queue_reqs"
_HAND_OVER = (
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
_USED = "sglang:num_used_tokens"
_CAPACITY = "sglang:max_total_num_tokens"
_GAUGES = frozenset({_RUNNING, _QUEUED, _USED, _CAPACITY, *_HAND_OVER})


def from_loads(raw: bytes, origin: str) -> tuple[LoadReport, ...]:
    """`GET /v1/loads`. On a PD worker `num_waiting_reqs` already includes the hand-over queues."""
    return tuple(_report(load) for load in decode(raw, _Loads, origin).loads if is_rank(load.dp_rank))


def from_get_load(raw: bytes, origin: str) -> tuple[LoadReport, ...]:
    """`GET /get_load` of older servers: `num_reqs` counts running and waiting requests together."""
    return tuple(
        LoadReport(
            dp_rank=load.dp_rank,
            running_requests=count(load.num_reqs - load.num_waiting_reqs),
            waiting_requests=count(load.num_waiting_reqs),
            kv_tokens_used=count(load.num_tokens),
        )
        for load in decode(raw, tuple[_OldLoad, ...], origin)
        if is_rank(load.dp_rank)
    )


def from_metrics(text: str, origin: str) -> tuple[LoadReport, ...]:
    """The gauges of `GET /metrics`, which needs `--enable-metrics`. Empty when the text holds none of them."""
    metrics = Metrics(text, _GAUGES, origin)
    running = metrics.by_rank(_RUNNING, "dp_rank")
    waiting = [metrics.by_rank(name, "dp_rank") for name in (_QUEUED, *_HAND_OVER)]
    used = metrics.by_rank(_USED, "dp_rank")
    capacity = metrics.by_rank(_CAPACITY, "dp_rank")
    return tuple(
        LoadReport(
            dp_rank=rank,
            running_requests=count(running[rank]),
            waiting_requests=count(sum(queue.get(rank, 0) for queue in waiting)),
            kv_tokens_used=count(used.get(rank, 0)),
            kv_tokens_capacity=count(capacity.get(rank, 0)),
        )
        for rank in sorted(running)
    )


def _report(load: _Load) -> LoadReport:
    waiting = load.num_waiting_uncached_tokens
    speed = load.disaggregation.kv_transfer_speed_gb_s if load.disaggregation else 0.0
    latency = load.disaggregation.kv_transfer_latency_ms if load.disaggregation else 0.0
    return LoadReport(
        dp_rank=load.dp_rank,
        running_requests=count(load.num_running_reqs),
        waiting_requests=count(load.num_waiting_reqs),
        waiting_uncached_tokens=None if waiting is None else count(waiting),
        kv_tokens_used=count(load.num_used_tokens),
        kv_tokens_capacity=count(load.max_total_num_tokens),
        max_running_requests=count(load.max_running_requests),
        prefill_uncached_tokens_total=total(load.total_prefill_uncached_tokens),
        prefill_busy_us_total=total(load.total_prefill_busy_us),
        transfer_bytes_per_ms=speed * _GIB / _MS_PER_S if 0 < speed < _MAX_GIB_S else None,  # 0 = nothing was sent yet
        transfer_latency_ms=latency if 0 < latency < _MAX_LATENCY_MS else None,
    )
