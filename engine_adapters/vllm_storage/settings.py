"""What an operator says in `kv_connector_extra_config`, and what vLLM itself must be set to.

Keys that nobody reads are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvtier.client.page_client import ClientSettings
from kvtier.settings.ranges import CountOrNone, Seconds, Size, Text, Threads

HASH_ALGORITHMS = ("sha256", "sha256_cbor")


class ConnectorConfigError(ValueError):
    """The message names the key and what to do."""


class ConnectorSettings(ClientSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`socket` is the agent's. `worker` is this server's name at the gateway, for restore cuts."""

    socket: Text
    worker: str = ""
    model: str = ""  # "" = what vLLM calls it; servers that name one model by different paths must agree here
    revision: str = ""
    namespace: str = ""  # pages of different namespaces never meet
    ssd_pages: CountOrNone = 128  # of a prompt that count as there while they lie on SSD alone
    copy_threads: Threads = 2
    load_s: Seconds = 10.0  # for all blocks of one request together; what has not come by then is computed
    staging_bytes: Size = 256 << 20  # blocks on their way to the agent; more are not stored


def connector_settings(extra_config: Mapping[str, Any]) -> ConnectorSettings:
    """Raises `ConnectorConfigError`."""
    try:
        return msgspec.convert(dict(extra_config), ConnectorSettings)
    except msgspec.ValidationError as error:
        raise ConnectorConfigError(f"kv_connector_extra_config: {error}") from error


def check_engine(vllm_config: Any, kv_cache_config: Any) -> None:
    """What vLLM must be set to, so that a missing page is computed instead, and a block's hash names its tokens everywhere.

    Raises `ConnectorConfigError`.
    """
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ConnectorConfigError(
            'set "kv_load_failure_policy": "recompute" in --kv-transfer-config: without it a lost page fails its request'
        )
    if not cache.enable_prefix_caching:
        raise ConnectorConfigError("set --enable-prefix-caching: without it vLLM computes no block hashes")
    if cache.prefix_caching_hash_algo not in HASH_ALGORITHMS:
        known = " or ".join(HASH_ALGORITHMS)
        raise ConnectorConfigError(f"set --prefix-caching-hash-algo to {known}, not {cache.prefix_caching_hash_algo}")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConnectorConfigError(
            f"models with {len(kv_cache_config.kv_cache_groups)} KV cache groups are not supported: one alone can be restored"
        )
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise ConnectorConfigError(f"{name} must be 1: blocks spread over context-parallel ranks are not supported")
