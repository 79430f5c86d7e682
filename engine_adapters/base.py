"""The contract between the router and one engine's wire.

An adapter is stateless and knows one engine: how to discover it, read its load, follow its KV events, which members to splice
into a request body, and what a reply's usage object says. It performs control traffic only through the httpx client that it is
given; request bytes never pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import httpx
import msgspec

from costmodel.values import Role, Tier
from kvtier.index.events import BlockEvent


class EngineKind(StrEnum):
    SGLANG = "sglang"
    VLLM = "vllm"
    OPENAI = "openai"


class Endpoint(msgspec.Struct, frozen=True):
    """How to reach one engine server for control traffic."""

    url: str  # scheme://host:port, no trailing slash
    api_key: str | None = None
    admin_key: str | None = None


class EventFeed(msgspec.Struct, frozen=True):
    """One rank's KV event publisher."""

    dp_rank: int
    address: str  # tcp://host:port to subscribe to
    replay_address: str | None
    topic: str = ""
    snapshot_address: str | None = None  # newer SGLang: all that the rank holds, at one moment


class EngineInfo(msgspec.Struct, frozen=True):
    """What discovery found. Fields that an engine does not tell keep their defaults."""

    engine: str  # "sglang 0.5.23", "loadback-emulator …", "vllm …"
    models: tuple[str, ...]
    role: Role = Role.UNIFIED
    page_size: int = 0  # tokens a block; 0 = unknown
    dp_size: int = 1
    bootstrap_port: int | None = None
    event_feeds: tuple[EventFeed, ...] = ()
    bigram: bool = False  # EAGLE-family speculative decoding hashes token pairs
    kv_tokens_capacity: int = 0
    max_running_requests: int = 0
    max_prompt_tokens: int = 0
    decode_keeps_cache: bool = False  # decode-side radix cache is on
    reports_cached_tokens: bool = False
    flags: dict[str, str | int | float | bool | None] = {}  # raw facts for `doctor`, by the engine's own flag names


class LoadReport(msgspec.Struct, frozen=True):
    """One rank's load as the engine tells it. Counters are cumulative."""

    dp_rank: int
    running_requests: int
    waiting_requests: int
    waiting_uncached_tokens: int | None = None
    kv_tokens_used: int = 0
    kv_tokens_capacity: int = 0
    max_running_requests: int = 0
    prefill_uncached_tokens_total: int | None = None
    prefill_busy_us_total: int | None = None
    transfer_bytes_per_ms: float | None = None
    transfer_latency_ms: float | None = None

    def without(self, requests: int) -> LoadReport:
        """As if so many were not there: first of those that wait, each with the mean of their uncached tokens, then of those
        that run."""
        waiting = max(0, self.waiting_requests - requests)
        running = max(0, self.running_requests - max(0, requests - self.waiting_requests))
        uncached = self.waiting_uncached_tokens
        if uncached and self.waiting_requests:
            uncached = uncached * waiting // self.waiting_requests
        return msgspec.structs.replace(
            self, running_requests=running, waiting_requests=waiting, waiting_uncached_tokens=uncached
        )


class EventBatch(msgspec.Struct, frozen=True):
    timestamp_s: float
    events: tuple[BlockEvent, ...]
    dp_rank: int | None = None


class ReplyFacts(msgspec.Struct, frozen=True):
    """What one reply's usage says.

    On a PD pair the decode leg's cached counts are the larger of both legs' (seen on SGLang 0.5.23): what prefill had cached is
    told by the prefill leg's own reply alone.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None  # None = the engine did not say
    cached_by_tier: dict[Tier, int] | None = None


class Edit(msgspec.Struct, frozen=True):
    """Everything the router may ask an adapter to add to one leg's body. Absent things stay None."""

    path: str
    stream: bool
    rid: str
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    prefill_dp_rank: int | None = None
    decode_dp_rank: int | None = None
    leg: Role = Role.UNIFIED
    want_usage: bool = True  # the client's own stream_options do not already ask for usage
    stream_options: bytes | None = None  # the client's stream_options object as raw JSON, if any
    input_ids: bytes | None = None  # the prompt's token ids as a JSON array, for engines that take them in place of the text


class EngineAdapter(Protocol):
    """One engine's wire. Raises `AdapterError` from its control calls, never anything of httpx."""

    kind: EngineKind
    reserved_keys: frozenset[str]  # top-level body keys that a client may not set
    reserved_headers: frozenset[bytes]  # lower-case header names that a client may not send through: they override the body
    serves: frozenset[str]  # API paths this engine answers

    async def discover(self, http: httpx.AsyncClient, endpoint: Endpoint) -> EngineInfo: ...

    async def read_loads(self, http: httpx.AsyncClient, endpoint: Endpoint) -> Sequence[LoadReport]: ...

    async def abort(self, http: httpx.AsyncClient, endpoint: Endpoint, rid: str) -> None: ...

    async def flush_cache(self, http: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> None:
        """Empty the engine's cache once it is idle, waiting up to `timeout_s`. AdapterError where the engine cannot."""
        ...

    async def healthy(self, http: httpx.AsyncClient, endpoint: Endpoint) -> bool: ...

    def decode_events(self, payload: bytes) -> EventBatch: ...

    def request_id(self, path: str, token: str) -> str:
        """The `Edit.rid` for one try of a call of `path`, from a fresh hex token of fixed length. Clients may see it."""
        ...

    def members(self, edit: Edit) -> bytes:
        """Members to splice before the body's final brace, as `"a":1,"b":2` without a leading comma; may be empty."""
        ...

    def headers(self, edit: Edit) -> tuple[tuple[bytes, bytes], ...]:
        """Headers to add to this leg, for what this path's body has no place for; usually none."""
        ...

    def facts(self, usage: bytes, details: bytes | None) -> ReplyFacts:
        """Read a raw `usage` object and, where the engine sends one, its raw detail object (`sglext`)."""
        ...


class AdapterError(Exception):
    """An engine's control call failed or answered something unreadable. The message names the URL and what was expected."""
