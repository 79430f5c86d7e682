"""`/metrics`: the gauges and counters of SGLang 0.5.23 that a router or dashboard reads, by its names and labels."""

from __future__ import annotations

from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.worker.agent_pool import STORAGE_NAME
from engine_adapters.emulator.worker.worker import Worker


def exposition(worker: Worker) -> str:
    """Prometheus text."""
    load, params, cache = worker.driver.model.load(), worker.params, worker.driver.model.cache
    counters, page = load.counters, worker.params.page_tokens
    engine_type = {"null": "unified"}.get(params.role.value, params.role.value)
    labels = (
        f'engine_type="{engine_type}",model_name="{worker.options.served_model_name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    lines: list[str] = []
    for name, help_text, value in (
        ("num_running_reqs", "The number of running requests.", load.running),
        ("num_queue_reqs", "The number of requests in the waiting queue.", load.queue(Stage.WAITING).requests),
        ("num_used_tokens", "The number of used tokens.", load.held_tokens),
        ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", params.kv_tokens),
        ("token_usage", "The token usage.", round(load.held_tokens / params.kv_tokens, 4)),
        ("cache_hit_rate", "The prefix cache hit rate.", round(counters.hit_rate, 4)),
        ("gen_throughput", "The generation throughput (token/s).", round(counters.decode_tokens_per_s, 2)),
        ("num_prefill_bootstrap_queue_reqs", "Prefill bootstrap queue.", load.queue(Stage.BOOTSTRAP).requests),
        ("num_prefill_inflight_queue_reqs", "Prefill inflight queue.", load.queue(Stage.SENDING).requests),
        ("num_decode_prealloc_queue_reqs", "Decode prealloc queue.", load.queue(Stage.PREALLOC).requests),
        ("num_decode_transfer_queue_reqs", "Decode transfer queue.", load.queue(Stage.RECEIVING).requests),
        ("kv_transfer_speed_gb_s", "The transfer speed of the KV cache in GB/s.", counters.transfer_bytes_per_ms / 1.0e6),
        ("kv_transfer_latency_ms", "The transfer latency of the KV cache in ms.", counters.transfer_ms),
        ("hicache_host_used_tokens", "Tokens in the host cache.", cache.host_pages * page),
        ("hicache_host_total_tokens", "Capacity of the host cache in tokens.", params.host_kv_tokens),
    ):
        lines += _family(name, "gauge", help_text, [("", value)], labels)
    hits = [
        (f',cache_source="{source}"', tokens)
        for source, tokens in (
            ("device", counters.cached_device_tokens),
            ("host", counters.cached_host_tokens),
            (f"storage_{STORAGE_NAME}", counters.cached_storage_tokens),
        )
    ]
    for name, help_text, samples in (
        ("prompt_tokens_total", "Number of prefill tokens processed.", [("", counters.prompt_tokens)]),
        ("generation_tokens_total", "Number of generation tokens processed.", [("", counters.generated)]),
        ("cached_tokens_total", "Number of cached prompt tokens.", hits),
        ("num_requests_total", "Number of requests processed.", [("", counters.finished)]),
        ("num_aborted_requests_total", "Number of requests aborted.", [("", counters.aborted)]),
        ("num_retractions_total", "Number of retracted requests.", [("", counters.retractions)]),
        ("evicted_tokens_total", "The number of tokens evicted from the device.", [("", cache.evicted_pages * page)]),
        ("load_back_tokens_total", "The number of tokens loaded back from the host.", [("", counters.loaded_back_tokens)]),
        ("backuped_tokens_total", "The number of tokens written to the host.", [("", counters.backed_up_tokens)]),
    ):
        lines += _family(name, "counter", help_text, samples, labels)
    return "\n".join(lines) + "\n"


def _family(
    name: str, kind: str, help_text: str, samples: list[tuple[str, int]] | list[tuple[str, float]], labels: str
) -> list[str]:
    head = [f"# HELP sglang:{name} {help_text}", f"# TYPE sglang:{name} {kind}"]
    return head + [f"sglang:{name}{{{labels}{extra}}} {float(value)}" for extra, value in samples]
