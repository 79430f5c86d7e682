"""What a vLLM server tells of itself over HTTP: its version, its models and, where `/metrics` is open, its block size. Pure.

vLLM has no equivalent of SGLang's `/server_info` outside development mode: KV-event addresses are not told and come from the
gateway's configuration, prefill/decode disaggregation is not told and not supported here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine_adapters.base import EngineInfo
from engine_adapters.counts import count, ranks
from engine_adapters.metrics_text import Metrics
from engine_adapters.models_list import ServedModels

CACHE_CONFIG = "vllm:cache_config_info"
_MAX_DIGITS = 16


class Version(msgspec.Struct, frozen=True):
    version: str


def engine_info(version: str, models: ServedModels, metrics: Metrics | None) -> EngineInfo:
    """`metrics` must have been read with `CACHE_CONFIG` among the wanted series; None = not open."""
    labels = [sample.labels for sample in metrics.samples(CACHE_CONFIG)] if metrics is not None else []
    config: Mapping[str, str] = labels[0] if labels else {}
    return EngineInfo(
        engine=f"vllm {version}",
        models=models.names,
        page_size=_integer(config.get("hash_block_size")) or _integer(config.get("block_size")),
        dp_size=ranks(len(labels)),
        kv_tokens_capacity=kv_tokens_capacity(config),
        max_prompt_tokens=models.max_prompt_tokens,
        decode_keeps_cache=config.get("enable_prefix_caching") == "True",
        flags=dict(config),
    )


def kv_tokens_capacity(config: Mapping[str, str]) -> int:
    """Tokens of KV that one engine holds, from the labels of its `CACHE_CONFIG` sample; 0 = not told."""
    blocks = _integer(config.get("num_gpu_blocks")) * _integer(config.get("block_size"))
    return _integer(config.get("kv_cache_size_tokens")) or count(blocks)


def _integer(text: str | None) -> int:
    return count(int(text)) if text is not None and len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else 0
