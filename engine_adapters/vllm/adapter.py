"""vLLM behind the `EngineAdapter` contract, as a pool of plain OpenAI servers with load and KV events.

No prefill/decode disaggregation, and no abort call: vLLM stops a request when its connection closes.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from engine_adapters.base import (
    AdapterError,
    Edit,
    Endpoint,
    EngineInfo,
    EngineKind,
    EventBatch,
    LoadReport,
    ReplyFacts,
)
from engine_adapters.control import ControlStatus, call, read
from engine_adapters.metrics_text import Metrics
from engine_adapters.models_list import read_models
from engine_adapters.stream_options import usage_member
from engine_adapters.usage import read_usage
from engine_adapters.vllm import events
from engine_adapters.vllm.discovery import Version, engine_info
from engine_adapters.vllm.loads import SERIES, load_reports

_USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class VllmAdapter:
    """vLLM's OpenAI server, 0.8 and later. Stateless."""

    kind = EngineKind.VLLM
    reserved_keys = frozenset({"kv_transfer_params", "ec_transfer_params", "request_id"})
    reserved_headers = frozenset({b"x-data-parallel-rank", b"x-request-id"})
    serves = _USAGE_PATHS | {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models"}

    async def discover(self, http: httpx.AsyncClient, endpoint: Endpoint) -> EngineInfo:
        version = await read(http, endpoint, "/version", Version)
        return engine_info(version.version, await read_models(http, endpoint), await _metrics(http, endpoint))

    async def read_loads(self, http: httpx.AsyncClient, endpoint: Endpoint) -> Sequence[LoadReport]:
        metrics = await _metrics(http, endpoint)
        if metrics is None:
            raise AdapterError(f"{endpoint.url} tells no load: /metrics is closed (is --disable-log-stats set?)")
        return load_reports(metrics)

    async def abort(self, http: httpx.AsyncClient, endpoint: Endpoint, rid: str) -> None:
        """Nothing to send: closing the connection is vLLM's abort, and the router closes it."""

    async def flush_cache(self, http: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> None:
        raise AdapterError(f"{endpoint.url}: vLLM cannot be told to empty its cache while it may be serving")

    async def healthy(self, http: httpx.AsyncClient, endpoint: Endpoint) -> bool:
        try:
            await call(http, endpoint, "/health")
        except AdapterError:
            return False
        return True

    def decode_events(self, payload: bytes) -> EventBatch:
        return events.decode_events(payload)

    def request_id(self, path: str, token: str) -> str:
        return token

    def members(self, edit: Edit) -> bytes:
        """vLLM refuses `stream_options` without `stream`, and its other paths always report usage."""
        if edit.stream and edit.want_usage and edit.path in _USAGE_PATHS:
            return usage_member(edit.stream_options)
        return b""

    def headers(self, edit: Edit) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    def facts(self, usage: bytes, details: bytes | None) -> ReplyFacts:
        return read_usage(usage)


async def _metrics(http: httpx.AsyncClient, endpoint: Endpoint) -> Metrics | None:
    """The series that matter; None where the server serves no metrics."""
    try:
        text = (await call(http, endpoint, "/metrics")).text
    except ControlStatus as status:
        if status.absent:
            return None
        raise
    return Metrics(text, SERIES, f"{endpoint.url}/metrics")
