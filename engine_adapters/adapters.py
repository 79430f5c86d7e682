"""Which adapter speaks to which kind of engine, and how to tell the kind of a server that nobody named."""

from __future__ import annotations

import httpx

from engine_adapters.base import AdapterError, Endpoint, EngineAdapter, EngineKind
from engine_adapters.control import call
from engine_adapters.models_list import read_models
from engine_adapters.openai.adapter import OpenAiAdapter
from engine_adapters.sglang.adapter import SglangAdapter
from engine_adapters.vllm.adapter import VllmAdapter

_ADAPTERS: dict[EngineKind, type[EngineAdapter]] = {
    EngineKind.SGLANG: SglangAdapter,
    EngineKind.VLLM: VllmAdapter,
    EngineKind.OPENAI: OpenAiAdapter,
}

_OWNERS = {"sglang": EngineKind.SGLANG, "vllm": EngineKind.VLLM}


def adapter_for(kind: EngineKind) -> EngineAdapter:
    return _ADAPTERS[kind]()


async def detect(http: httpx.AsyncClient, endpoint: Endpoint) -> EngineKind:
    """The kind of the engine at `endpoint`, by the owner of its models, else by an endpoint that only SGLang has.

    Raises `AdapterError` when nothing there answers `/v1/models`.
    """
    for model in (await read_models(http, endpoint)).data:
        if model.owned_by in _OWNERS:
            return _OWNERS[model.owned_by]
    for path in ("/server_info", "/get_server_info"):
        if await _is_sglang_info(http, endpoint, path):
            return EngineKind.SGLANG
    return EngineKind.OPENAI


async def _is_sglang_info(http: httpx.AsyncClient, endpoint: Endpoint, path: str) -> bool:
    try:
        return b'"disaggregation_mode"' in (await call(http, endpoint, path)).content
    except AdapterError:
        return False
