"""Which page space a vLLM worker's blocks belong to: what of its settings decides the bytes of a block.

Data-parallel ranks share pages. Ranks that hold the same KV (MLA, or fewer KV heads than ranks) share a shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine_adapters.vllm_storage.settings import ConnectorSettings
from kvtier.page.space import REPLICATED, PageSpace, Shard


class Rank(NamedTuple):
    """One worker among those of its engine."""

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1


def page_space(vllm_config: Any, kv_cache_config: Any, rank: Rank, layout: str, settings: ConnectorSettings) -> PageSpace:
    """`layout` says how a block's bytes lie: see `BlockTensors.layout`."""
    model = vllm_config.model_config
    return PageSpace(
        model=settings.model or model.model,
        kv_dtype=str(vllm_config.cache_config.cache_dtype),
        layout=layout,
        page_tokens=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
        revision=settings.revision or getattr(model, "revision", None) or "",
        shard=_shard(rank, replicas(kv_cache_config)),
        namespace=settings.namespace,
    )


def replicas(kv_cache_config: Any) -> int:
    """Consecutive tensor-parallel ranks that hold the same KV; versions that do not say so have none."""
    return getattr(kv_cache_config, "kv_tp_replicas", 1) or 1


def _shard(rank: Rank, replicas: int) -> Shard:
    if replicas == rank.tp_size > 1:
        return Shard(REPLICATED, 1, rank.pp, rank.pp_size)
    return Shard(rank.tp // replicas, max(1, rank.tp_size // replicas), rank.pp, rank.pp_size)
