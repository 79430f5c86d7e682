"""`/server_info` and `/v1/models` of one SGLang server, read into an `EngineInfo`. Pure: the JSON comes in as bytes.

Unknown fields are tolerated and missing ones keep their defaults, so that older and newer versions are read alike. Secrets in
the reply (keys, passwords) never reach `flags`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from costmodel.values import Role
from engine_adapters.base import EngineInfo, EventFeed
from engine_adapters.control import decode
from engine_adapters.counts import MAX_COUNT, count, is_port, ranks
from engine_adapters.models_list import ServedModels
from engine_adapters.sglang.snapshot import SNAPSHOT_VERSION
from engine_adapters.sglang.wire import bracketed

Fact = str | int | float | bool | None

_WILDCARD_HOSTS = frozenset({"*", "0.0.0.0", "::", "[::]", ""})
_BIGRAM_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN", "MTP"})
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
_SECRETS = ("key", "password", "secret", "launch_command")


class _KvEvents(msgspec.Struct, frozen=True):
    publisher: str = ""
    endpoint_host: str = "*"
    endpoint_port_base: int = 0
    replay_endpoint_port_base: int | None = None
    snapshot_endpoint_port_base: int | None = None
    snapshot_versions: tuple[int, ...] = (SNAPSHOT_VERSION,)  # the first servers with snapshots do not tell
    topic: str = ""
    block_size: int = 0
    dp_size: int = 1


class _ServerInfo(msgspec.Struct, frozen=True):
    version: str = "unknown"
    engine: str | None = None  # our own emulator's name; no real SGLang tells one
    served_model_name: str | None = None
    page_size: int | None = None
    dp_size: int | None = None
    attn_dp_size: int | None = None
    enable_dp_attention: bool = False
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    disaggregation_decode_enable_radix_cache: bool = False
    disable_radix_cache: bool = False
    speculative_algorithm: str | None = None
    enable_cache_report: bool = False
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    max_req_input_len: int | None = None
    kv_events: _KvEvents | None = None


def engine_info(raw: bytes, models: ServedModels, url: str) -> EngineInfo:
    """What `url`'s `/server_info` says. Raises `AdapterError` when it is not an object of the expected shape."""
    origin = f"{url}/server_info"
    info = decode(raw, _ServerInfo, origin)
    role = _ROLES.get(info.disaggregation_mode or "", Role.UNIFIED)
    return EngineInfo(
        engine=f"{info.engine or 'sglang'} {info.version}",
        models=models.names or ((info.served_model_name,) if info.served_model_name else ()),
        role=role,
        page_size=_page_size(info),
        dp_size=_dp_size(info),
        bootstrap_port=_bootstrap_port(info) if role is Role.PREFILL else None,
        event_feeds=event_feeds(info.kv_events, url) if info.kv_events is not None else (),
        bigram=(info.speculative_algorithm or "").upper() in _BIGRAM_ALGORITHMS,
        kv_tokens_capacity=count(info.max_total_num_tokens),
        max_running_requests=count(info.max_running_requests),
        max_prompt_tokens=count(info.max_req_input_len) or models.max_prompt_tokens,
        decode_keeps_cache=role is Role.DECODE and info.disaggregation_decode_enable_radix_cache,
        reports_cached_tokens=info.enable_cache_report,
        flags=flags(raw, origin),
    )


def event_feeds(kv: _KvEvents, url: str) -> tuple[EventFeed, ...]:
    """One feed per rank: rank r publishes on base + r, as far as there are ports.

    A wildcard host stands for the host of the worker's own URL.
    """
    if kv.publisher != "zmq" or kv.endpoint_port_base <= 0:
        return ()
    host = urlsplit(url).hostname or "" if kv.endpoint_host in _WILDCARD_HOSTS else kv.endpoint_host
    base = f"tcp://{bracketed(host)}"
    return tuple(
        EventFeed(
            dp_rank=rank,
            address=f"{base}:{kv.endpoint_port_base + rank}",
            replay_address=_address(base, kv.replay_endpoint_port_base, rank),
            topic=kv.topic,
            snapshot_address=_snapshot_address(base, kv, rank),
        )
        for rank in range(ranks(kv.dp_size))
        if is_port(kv.endpoint_port_base + rank)
    )


def _snapshot_address(base: str, kv: _KvEvents, rank: int) -> str | None:
    return _address(base, kv.snapshot_endpoint_port_base, rank) if SNAPSHOT_VERSION in kv.snapshot_versions else None


def _address(base: str, first_port: int | None, rank: int) -> str | None:
    port = None if first_port is None else first_port + rank
    return f"{base}:{port}" if is_port(port) else None


def flags(raw: bytes, origin: str) -> dict[str, Fact]:
    """The scalar facts by the engine's own names, `kv_events` and `hicache_object_layout` flattened with a dot; no secrets."""
    facts: dict[str, Fact] = {}
    for name, value in decode(raw, dict[str, object], origin).items():
        if any(word in name for word in _SECRETS):
            continue
        if isinstance(value, dict) and name == "kv_events":
            facts.update({f"{name}.{inner}": fact for inner, fact in value.items() if _is_fact(fact)})
        elif _is_fact(value):
            facts[name] = value  # type: ignore[assignment]  # _is_fact has just said so
    return facts


def _is_fact(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= MAX_COUNT
    return value is None or isinstance(value, str | float)


def _page_size(info: _ServerInfo) -> int:
    """Tokens a hashed block: events are hashed at `kv_events.block_size`, which context parallelism can make a multiple."""
    if info.kv_events is not None and info.kv_events.block_size > 0:
        return count(info.kv_events.block_size)
    return count(info.page_size)


def _bootstrap_port(info: _ServerInfo) -> int | None:
    port = info.disaggregation_bootstrap_port
    return port if is_port(port) else None


def _dp_size(info: _ServerInfo) -> int:
    if info.kv_events is not None and info.kv_events.dp_size > 0:
        return ranks(info.kv_events.dp_size)
    return ranks(info.dp_size)
