"""Any server that speaks the OpenAI API and tells no more: no load, no events, no abort. Residency comes from replies alone."""

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
from engine_adapters.models_list import read_models
from engine_adapters.stream_options import usage_member
from engine_adapters.usage import read_usage

_USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class OpenAiAdapter:
    """The least that `/v1` promises. Stateless."""

    kind = EngineKind.OPENAI
    reserved_keys: frozenset[str] = frozenset()
    reserved_headers: frozenset[bytes] = frozenset()
    serves = _USAGE_PATHS | {"/v1/responses", "/v1/messages", "/v1/models"}

    async def discover(self, http: httpx.AsyncClient, endpoint: Endpoint) -> EngineInfo:
        models = await read_models(http, endpoint)
        owner = next((model.owned_by for model in models.data if model.owned_by), None)
        engine = f"openai ({owner})" if owner else "openai"
        return EngineInfo(engine=engine, models=models.names, max_prompt_tokens=models.max_prompt_tokens)

    async def read_loads(self, http: httpx.AsyncClient, endpoint: Endpoint) -> Sequence[LoadReport]:
        return ()

    async def abort(self, http: httpx.AsyncClient, endpoint: Endpoint, rid: str) -> None:
        """Nothing to send: such a server stops, if at all, when the connection closes."""

    async def flush_cache(self, http: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> None:
        raise AdapterError(f"{endpoint.url}: a plain OpenAI server cannot be told to empty its cache while it may be serving")

    async def healthy(self, http: httpx.AsyncClient, endpoint: Endpoint) -> bool:
        try:
            await read_models(http, endpoint)
        except AdapterError:
            return False
        return True

    def decode_events(self, payload: bytes) -> EventBatch:
        raise AdapterError("a plain OpenAI server publishes no KV events; set the engine's kind to sglang or vllm")

    def request_id(self, path: str, token: str) -> str:
        return token

    def members(self, edit: Edit) -> bytes:
        if edit.stream and edit.want_usage and edit.path in _USAGE_PATHS:
            return usage_member(edit.stream_options)
        return b""

    def headers(self, edit: Edit) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    def facts(self, usage: bytes, details: bytes | None) -> ReplyFacts:
        return read_usage(usage)
