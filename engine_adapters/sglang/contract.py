"""The engine contract: every SGLang flag that matters to the gateway, its wanted value and what is lost without it.

`doctor` runs the checks over what discovery found; `docs/engines.md` shows the same table. A check that the server's version
gives no answer to is `UNKNOWN`, never a failure. Nothing here talks to an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from costmodel.values import Role
from engine_adapters.base import EngineInfo

ANY_ROLE = frozenset(Role)
PROMPT_ROLES = frozenset({Role.PREFILL, Role.UNIFIED})

MIN_REPLAY_BATCHES = 10_000


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"  # this version does not tell


class Need(StrEnum):
    REQUIRED = "required"  # wrong or refused requests without it
    WANTED = "wanted"  # worse decisions without it
    OPTIONAL = "optional"  # one feature more with it


class Clause(msgspec.Struct, frozen=True):
    flag: str
    wanted: str
    lost: str
    need: Need
    check: Callable[[EngineInfo], Verdict]
    roles: frozenset[Role] = ANY_ROLE


class Finding(msgspec.Struct, frozen=True):
    clause: Clause
    verdict: Verdict


def examine(info: EngineInfo) -> tuple[Finding, ...]:
    """Every clause that applies to a server of this role, in table order."""
    return tuple(Finding(clause, clause.check(info)) for clause in CLAUSES if info.role in clause.roles)


def _verdict(holds: bool) -> Verdict:
    return Verdict.OK if holds else Verdict.MISSING


def _is(name: str, *values: object) -> Callable[[EngineInfo], Verdict]:
    """The flag is one of `values`."""

    def check(info: EngineInfo) -> Verdict:
        return _verdict(info.flags[name] in values) if name in info.flags else Verdict.UNKNOWN

    return check


def _is_set(name: str) -> Callable[[EngineInfo], Verdict]:
    def check(info: EngineInfo) -> Verdict:
        return _verdict(info.flags[name] not in (None, "", False)) if name in info.flags else Verdict.UNKNOWN

    return check


def _publishes(info: EngineInfo) -> Verdict:
    return _verdict(bool(info.event_feeds))


def _replays(info: EngineInfo) -> Verdict:
    return _verdict(bool(info.event_feeds) and all(feed.replay_address for feed in info.event_feeds))


def _keeps_enough_for_replay(info: EngineInfo) -> Verdict:
    config = _events_config(info)
    return Verdict.UNKNOWN if config is None else _verdict(config.buffer_steps >= MIN_REPLAY_BATCHES)


def _plain_hashes(info: EngineInfo) -> Verdict:
    config = _events_config(info)
    return Verdict.UNKNOWN if config is None else _verdict(config.format == "default")


class _EventsConfig(msgspec.Struct, frozen=True):
    buffer_steps: int = 10_000  # the engine's own defaults
    format: str = "default"


def _events_config(info: EngineInfo) -> _EventsConfig | None:
    raw = info.flags.get("kv_events_config")
    if not isinstance(raw, str):
        return None
    try:
        return msgspec.json.decode(raw, type=_EventsConfig)
    except msgspec.MsgspecError:
        return None


def _pages(info: EngineInfo) -> Verdict:
    return Verdict.UNKNOWN if info.page_size == 0 else _verdict(info.page_size > 1)


def _has_bootstrap_port(info: EngineInfo) -> Verdict:
    return _verdict(info.bootstrap_port is not None)


def _follows_room(info: EngineInfo) -> Verdict:
    return Verdict.OK if info.dp_size == 1 else _is("load_balance_method", "follow_bootstrap_room")(info)


def _tells_cached(info: EngineInfo) -> Verdict:
    return _verdict(info.reports_cached_tokens)


def _decode_keeps(info: EngineInfo) -> Verdict:
    return _verdict(info.decode_keeps_cache)


def _needs_host_tier(name: str, *values: object) -> Callable[[EngineInfo], Verdict]:
    """A HiCache setting: without HiCache there is nothing to judge."""

    def check(info: EngineInfo) -> Verdict:
        return _is(name, *values)(info) if info.flags.get("enable_hierarchical_cache") else Verdict.OK

    return check


CLAUSES: tuple[Clause, ...] = (
    Clause(
        "--disable-radix-cache",
        "absent",
        "nothing is cached: every turn recomputes its whole prompt and no placement helps",
        Need.REQUIRED,
        _is("disable_radix_cache", False),
        PROMPT_ROLES,
    ),
    Clause(
        "--disaggregation-bootstrap-port",
        "a port that the decode workers reach",
        "a prefill worker cannot be paired",
        Need.REQUIRED,
        _has_bootstrap_port,
        frozenset({Role.PREFILL}),
    ),
    Clause(
        "--allow-auto-truncate",
        "absent",
        "over-long prompts are cut silently: the reply answers another prompt, and its blocks are not the ones predicted",
        Need.REQUIRED,
        _is("allow_auto_truncate", False),
    ),
    Clause(
        "--load-balance-method",
        "follow_bootstrap_room (the default of PD) when --dp-size > 1",
        "versions without `routed_dp_rank` choose the rank themselves, so a turn can land beside its cache",
        Need.REQUIRED,
        _follows_room,
        frozenset({Role.PREFILL, Role.DECODE}),
    ),
    Clause(
        "--abort-on-priority-when-disabled",
        "absent",
        "a request that carries `priority` is refused with 503 while priority scheduling is off",
        Need.REQUIRED,
        _is("abort_on_priority_when_disabled", False),
    ),
    Clause(
        "--kv-events-config",
        '\'{"publisher":"zmq","endpoint":"tcp://*:PORT","replay_endpoint":"tcp://*:PORT2"}\'',
        "residency is guessed from what was routed: evictions, restarts and other gateways' turns stay unseen",
        Need.WANTED,
        _publishes,
    ),
    Clause(
        "--kv-events-config: replay_endpoint",
        "a second port (rank r listens on port + r)",
        "one lost message empties the worker in the index, and a gateway that starts later knows nothing stored before",
        Need.WANTED,
        _replays,
    ),
    Clause(
        "--kv-events-config: buffer_steps",
        f">= {MIN_REPLAY_BATCHES} (the default)",
        "replay reaches back too little to bridge a gateway restart",
        Need.WANTED,
        _keeps_enough_for_replay,
    ),
    Clause(
        "--kv-events-config: format",
        "default",
        "`dynamo` mixes cache_salt and LoRA into the ids in a way of its own: salted turns match nothing",
        Need.WANTED,
        _plain_hashes,
    ),
    Clause(
        "--enable-cache-report",
        "set",
        "replies do not tell `cached_tokens`: predictions are never corrected",
        Need.WANTED,
        _tells_cached,
    ),
    Clause(
        "--page-size",
        "> 1, the same on all workers of a pool (16 to 64)",
        "one hash a token: long prompts cost the index and the wire 16 to 64 times more",
        Need.WANTED,
        _pages,
    ),
    Clause(
        "--disaggregation-decode-enable-radix-cache",
        "set on decode",
        "decode keeps nothing and publishes nothing: the whole prompt crosses from prefill on every turn",
        Need.WANTED,
        _decode_keeps,
        frozenset({Role.DECODE}),
    ),
    Clause(
        "--enable-hierarchical-cache",
        "set",
        "no host tier (L2): what leaves the accelerator is lost",
        Need.WANTED,
        _is("enable_hierarchical_cache", True),
        PROMPT_ROLES,
    ),
    Clause(
        "--hicache-write-policy",
        "write_through",
        "blocks reach the host tier only when they are evicted (`write_back`) or hit again (`write_through_selective`)",
        Need.WANTED,
        _needs_host_tier("hicache_write_policy", "write_through"),
        PROMPT_ROLES,
    ),
    Clause(
        "--hicache-storage-prefetch-policy",
        "timeout (the default) or wait_complete",
        "`best_effort` starts computing before stored pages have arrived, also on an idle engine",
        Need.WANTED,
        _needs_host_tier("hicache_storage_prefetch_policy", "timeout", "wait_complete"),
        PROMPT_ROLES,
    ),
    Clause(
        "--stream-interval",
        "1",
        "tokens reach the client in bunches, and the first one late",
        Need.WANTED,
        _is("stream_interval", 1),
        frozenset({Role.DECODE, Role.UNIFIED}),
    ),
    Clause(
        "--tool-call-parser",
        "the model's own",
        "tool calls come as text in `content`: agents see no call",
        Need.WANTED,
        _is_set("tool_call_parser"),
        frozenset({Role.DECODE, Role.UNIFIED}),
    ),
    Clause(
        "--enable-metrics",
        "set",
        "no `/metrics`: dashboards, and the load of versions without `/v1/loads`",
        Need.OPTIONAL,
        _is("enable_metrics", True),
    ),
    Clause(
        "--hicache-storage-backend",
        "any",
        "no shared tier (L3): another prefill worker must recompute",
        Need.OPTIONAL,
        _is_set("hicache_storage_backend"),
        PROMPT_ROLES,
    ),
    Clause(
        "--disaggregation-decode-enable-offload-kvcache",
        "set on decode, with a storage backend",
        "the next turn's prefill recomputes the last reply",
        Need.OPTIONAL,
        _is("disaggregation_decode_enable_offload_kvcache", True),
        frozenset({Role.DECODE}),
    ),
    Clause(
        "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES (environment)",
        "1, and no way to the engines but through the gateway",
        "`/v1/messages` calls have no request id: they are stopped only by closing their connections, which takes seconds",
        Need.OPTIONAL,
        lambda _info: Verdict.UNKNOWN,
    ),
    Clause(
        "--enable-priority-scheduling",
        "set",
        "the engine's own queue ignores `priority`",
        Need.OPTIONAL,
        _is("enable_priority_scheduling", True),
    ),
)
