"""Which page space an SGLang server's pages belong to: what of its settings decides the bytes of a page.

Data-parallel ranks share pages. A model whose KV is the same on every tensor-parallel rank (MLA) has one shard, which SGLang
writes from one rank alone and which every rank may read.
"""

from __future__ import annotations

from typing import Any

from engine_adapters.sglang_storage.settings import StorageConfigError, StorageSettings
from kvtier.page.space import REPLICATED, PageSpace, Shard

LAYOUTS = ("page_first", "page_first_direct")


def page_space(config: Any, pool: Any, settings: StorageSettings) -> PageSpace:
    """From SGLang's `HiCacheStorageConfig` and host pool. Fields that older versions lack have their neutral value.

    Raises `StorageConfigError` for what cannot be stored.
    """
    if pool.layout not in LAYOUTS:
        raise StorageConfigError(f"--hicache-mem-layout must be one of {', '.join(LAYOUTS)}, not {pool.layout}")
    if getattr(config, "should_split_heads", False):
        raise StorageConfigError("tp_lcm_size is not supported: pages of different tp sizes do not meet")
    return PageSpace(
        model=settings.model or config.model_name or "",
        kv_dtype=str(pool.dtype).removeprefix("torch."),
        layout=pool.layout,
        page_tokens=pool.page_size,
        revision=settings.revision,
        shard=_shard(config),
        namespace=settings.namespace,
    )


def _shard(config: Any) -> Shard:
    pp_rank, pp_size = getattr(config, "pp_rank", 0), getattr(config, "pp_size", 1)
    dcp_rank, dcp_size = getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)
    cp_rank = getattr(config, "attn_cp_rank", 0) * dcp_size + dcp_rank
    cp_size = getattr(config, "attn_cp_size", 1) * dcp_size
    if config.is_mla_model:
        return Shard(REPLICATED, 1, pp_rank, pp_size, cp_rank, cp_size)
    return Shard(config.tp_rank, config.tp_size, pp_rank, pp_size, cp_rank, cp_size)
