"""SGLang's storage class over the agent of this host. Runs inside the engine, on its storage threads.

The engine has one thread for queries and one for reads, each first come first served: everything here answers from local DRAM
and local SSD within its deadline, and whatever goes wrong is a miss. What other nodes hold counts once it was staged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage  # type: ignore[import-not-found,unused-ignore]

from engine_adapters.sglang_storage.host_pages import host_pages
from engine_adapters.sglang_storage.settings import StorageConfigError, storage_settings
from engine_adapters.sglang_storage.space import page_space
from kvtier.client.native_copier import best_copier
from kvtier.client.page_client import PageClient
from kvtier.page.key import join_digests

log = logging.getLogger(__name__)

_KV_POOL = "kv"


class LoadbackStorage(HiCacheStorage):  # type: ignore[misc,unused-ignore]
    """Made by SGLang's dynamic backend factory; asked for pages once the host pool is registered."""

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        """Raises `StorageConfigError`, which ends the server's start: a setting that nobody reads would be a lie."""
        self._config = storage_config
        self._settings = storage_settings(storage_config.extra_config)
        self._client: PageClient | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Raises `StorageConfigError`."""
        super().register_mem_pool_host(mem_pool_host)
        space = page_space(self._config, mem_pool_host, self._settings)
        copier = best_copier(self._settings.copy_threads)
        self._client = PageClient(Path(self._settings.socket), space, copier, self._settings, self._settings.worker)
        log.info("KV pages of %s at the agent behind %s", space, self._settings.socket)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Raises `StorageConfigError`: pages without their side pool would restore half of a model's state."""
        if str(host_pool_name) != _KV_POOL:
            raise StorageConfigError(f"models with a host pool {host_pool_name} beside their KV are not supported")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """Length of the leading run."""
        digests = _digests(keys)
        if self._client is None or digests is None:
            return 0
        return self._client.look(digests, self._settings.ssd_pages)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        digests = _digests(keys)
        if self._client is None or not digests:
            return [False] * len(keys)
        return self._client.get(digests, host_pages(self.mem_pool_host, host_indices, len(keys)))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        digests = _digests(keys)
        if self._client is None or not digests:
            return [False] * len(keys)
        depth = len(getattr(extra_info, "prefix_keys", None) or ())
        return self._client.put(digests, host_pages(self.mem_pool_host, host_indices, len(keys)), depth)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        if self._client is not None:
            self._client.clear()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # The copying interface, which `interface_v1` keeps SGLang from using.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        return None

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return False

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return False


def _digests(keys: Sequence[str]) -> bytes | None:
    """Joined; None for keys that are no SHA-256 in hex, which no version so far has made."""
    try:
        return join_digests(keys)
    except ValueError as error:
        log.warning("pages are neither stored nor restored: %s", error)
        return None
