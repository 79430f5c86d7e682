"""What an emulated worker says about itself: `/server_info`, `/model_info`, `/v1/models`, `/v1/loads`.

The members are SGLang 0.5.23's. The emulator names itself in `engine` and in every reply's header.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.model.load import EngineLoad, LoadCounters
from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.emulator.worker.options import ENGINE_NAME, SGLANG_VERSION
from engine_adapters.emulator.worker.worker import Worker


def model_info(worker: Worker) -> dict[str, Any]:
    options = worker.options
    config = json.loads((options.model_folder / "config.json").read_text(encoding="utf-8"))
    return {
        "model_path": str(options.model_folder),
        "served_model_name": options.served_model_name,
        "tokenizer_path": str(options.model_folder),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": "qwen",
        "disaggregation_mode": worker.params.role.value,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures"),
        "engine": ENGINE_NAME,
    }


def models(worker: Worker) -> dict[str, Any]:
    return {"object": "list", "data": [model_card(worker)]}


def model_card(worker: Worker) -> dict[str, Any]:
    name = worker.options.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": worker.params.context_tokens,
    }


def server_info(worker: Worker) -> dict[str, Any]:
    """Every flag of the engine by its name; those that mean something here tell the truth, the rest their defaults."""
    options, params = worker.options, worker.params
    return {
        **_flags(),
        "model_path": str(options.model_folder),
        "tokenizer_path": str(options.model_folder),
        "context_length": params.context_tokens,
        "max_running_requests": params.max_running,
        "max_total_tokens": params.kv_tokens,
        "chunked_prefill_size": params.chunk_tokens,
        "max_prefill_tokens": params.max_prefill_tokens,
        "page_size": params.page_tokens,
        "disable_radix_cache": not params.keeps_cache,
        "load_balance_method": "follow_bootstrap_room" if params.role is EngineRole.PREFILL else "round_robin",
        "device": "emulated",
        "host": options.host,
        "port": options.port,
        "served_model_name": options.served_model_name,
        "enable_cache_report": options.cache_report,
        "enable_hierarchical_cache": params.host_kv_tokens > 0,
        "hicache_ratio": params.host_kv_tokens / params.kv_tokens,
        "hicache_storage_backend": "dynamic" if options.l3_socket is not None else None,
        "hicache_storage_prefetch_policy": "wait_complete" if options.l3_socket is not None else "timeout",
        "disaggregation_mode": params.role.value,
        "disaggregation_bootstrap_port": options.bootstrap_port,
        "num_reserved_decode_tokens": params.decode_reserved_tokens,
        "disaggregation_decode_enable_radix_cache": params.decode_keeps_cache,
        "kv_events_config": _kv_events_config(worker),
        "status": "ready",
        "max_total_num_tokens": params.kv_tokens,
        "max_req_input_len": min(params.context_tokens, params.kv_tokens) - 6,
        "kv_events": _kv_events(worker),
        "internal_states": [_internal_state(worker)],
        "version": SGLANG_VERSION,
        "frontend": "python",
        "engine": ENGINE_NAME,
    }


def _flags() -> dict[str, Any]:
    """SGLang 0.5.23's flags with their values on a CPU, as captured from `/server_info`."""
    text = resources.files(__package__).joinpath("sglang_flags.json").read_text(encoding="utf-8")
    flags: dict[str, Any] = json.loads(text)
    return flags


def loads(worker: Worker, include: set[str] | None, dp_rank: int | None = None) -> dict[str, Any]:
    """Ranks other than 0 do not exist and are answered by an empty list."""
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": SGLANG_VERSION,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [_load(worker, include)] if dp_rank in (None, 0) else [],
    }


def loads_exposition(worker: Worker, include: set[str] | None) -> str:
    """The same as Prometheus text, as `?format=prometheus` asks for."""
    lines = []
    for key, value in _load(worker, include).items():
        if key == "dp_rank":
            continue
        prefix = {"disaggregation": "disagg_"}.get(key, f"{key}_") if isinstance(value, dict) else ""
        for name, number in value.items() if isinstance(value, dict) else ((key, value),):
            if isinstance(number, int | float):
                lines += [f"# TYPE sglang_{prefix}{name} gauge", f'sglang_{prefix}{name}{{dp_rank="0"}} {number}']
    return "\n".join(lines) + "\n"


SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


def _load(worker: Worker, include: set[str] | None) -> dict[str, Any]:
    load = worker.driver.model.load()
    found = _core_load(worker, load)
    sections = {
        "memory": ("memory", _memory(worker)),
        "disaggregation": ("disagg", _disaggregation(worker, load)),
        "queues": ("queues", _queues(load)),
    }
    for name, (section, value) in sections.items():
        if include is None or "all" in include or section in include:
            found[name] = value
    return found


def _core_load(worker: Worker, load: EngineLoad) -> dict[str, Any]:
    params, counters = worker.params, load.counters
    prefill, decode = params.role is EngineRole.PREFILL, params.role is EngineRole.DECODE
    waiting = load.queue(Stage.WAITING)
    bootstrap, prealloc, receiving = (load.queue(stage) for stage in (Stage.BOOTSTRAP, Stage.PREALLOC, Stage.RECEIVING))
    pending = prealloc.tokens if decode else waiting.tokens + bootstrap.tokens
    total = load.held_tokens + pending
    uncached = int(waiting.tokens * (1.0 - counters.hit_rate)) + load.chunk_left_tokens
    return {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": waiting.requests + bootstrap.requests + prealloc.requests + receiving.requests,
        "num_waiting_uncached_tokens": 0 if decode else uncached,
        "num_used_tokens": load.held_tokens,
        "num_total_tokens": total,
        "num_active_tokens": max(0, total - prealloc.tokens - receiving.tokens),
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": params.kv_tokens,
        "max_running_requests": params.max_running,
        "token_usage": round(load.held_tokens / params.kv_tokens, 4),
        "gen_throughput": round(counters.decode_tokens_per_s, 2) if load.running else 0.0,
        "cache_hit_rate": round(counters.hit_rate, 4),
        "utilization": -1.0 if prefill else 0.0,
        "total_prefill_uncached_tokens": counters.prefill_tokens,
        "total_prefill_busy_us": int(counters.prefill_busy_ms * 1000),
        "decode_moments": _moments(counters),
    }


def _disaggregation(worker: Worker, load: EngineLoad) -> dict[str, Any]:
    return {
        "mode": worker.params.role.value,
        "prefill_bootstrap_queue_reqs": load.queue(Stage.BOOTSTRAP).requests,
        "prefill_inflight_queue_reqs": load.queue(Stage.SENDING).requests,
        "decode_prealloc_queue_reqs": load.queue(Stage.PREALLOC).requests - load.retracted,
        "decode_transfer_queue_reqs": load.queue(Stage.RECEIVING).requests,
        "decode_retracted_queue_reqs": load.retracted,
        "kv_transfer_speed_gb_s": load.counters.transfer_bytes_per_ms / 1.0e6,
        "kv_transfer_latency_ms": load.counters.transfer_ms,
    }


def _queues(load: EngineLoad) -> dict[str, Any]:
    return {"waiting": load.queue(Stage.WAITING).requests, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}


def _moments(counters: LoadCounters) -> list[float] | None:
    """Sums over decode steps of 1, b, t, b*b, b*t and tokens (b running requests, t microseconds), for a fit of step time."""
    if not counters.decode_steps:
        return None
    return [
        float(counters.decode_steps),
        float(counters.decode_running_sum),
        round(counters.decode_busy_ms * 1000.0, 1),
        float(counters.decode_square_sum),
        round(counters.decode_product_sum * 1000.0, 1),
        float(counters.decode_running_sum),
    ]


def _memory(worker: Worker) -> dict[str, Any]:
    kv_gb = worker.params.kv_tokens * worker.params.kv_bytes_per_token / 1.0e9
    return {"weight_gb": 0.0, "kv_cache_gb": round(kv_gb, 3), "graph_gb": 0.0, "token_capacity": worker.params.kv_tokens}


def _internal_state(worker: Worker) -> dict[str, Any]:
    return {
        "world_size": 1,
        "effective_max_running_requests_per_dp": worker.params.max_running,
        "last_gen_throughput": worker.driver.model.counters.decode_tokens_per_s,
        "memory_usage": {"weight": 0.0, "kvcache": _memory(worker)["kv_cache_gb"], "token_capacity": worker.params.kv_tokens},
    }


def _kv_events(worker: Worker) -> dict[str, Any] | None:
    options = worker.options
    if options.kv_port is None:
        return None
    found: dict[str, Any] = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": options.kv_port,
        "topic": options.kv_topic,
        "block_size": worker.params.page_tokens,
        "dp_size": 1,
    }
    if options.kv_replay_port is not None:
        found["replay_endpoint_port_base"] = options.kv_replay_port
    return found


def _kv_events_config(worker: Worker) -> str | None:
    options = worker.options
    if options.kv_port is None:
        return None
    config: dict[str, Any] = {"publisher": "zmq", "endpoint": f"tcp://*:{options.kv_port}"}
    if options.kv_replay_port is not None:
        config["replay_endpoint"] = f"tcp://*:{options.kv_replay_port}"
    return json.dumps({**config, "topic": options.kv_topic, "buffer_steps": options.kv_buffer_steps}, separators=(",", ":"))
