"""vLLM's KV connector over the agent of this host. Runs inside the engine, one object in the scheduler and one in each worker.

Loads are asynchronous: a request waits for its blocks while others are computed. The workers tell the scheduler at start which
page spaces theirs are, so that a prompt counts as far as every rank has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base  # type: ignore[import-not-found,unused-ignore]
from vllm.distributed.parallel_state import get_pp_group, get_tp_group  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.metrics.cache_hit_source import CacheHitSource  # type: ignore[import-not-found,unused-ignore]

from engine_adapters.vllm_storage.block_tensors import BlockTensors
from engine_adapters.vllm_storage.orders import Orders
from engine_adapters.vllm_storage.scheduling import Scheduling
from engine_adapters.vllm_storage.settings import ConnectorSettings, check_engine, connector_settings
from engine_adapters.vllm_storage.space import Rank, page_space, replicas
from engine_adapters.vllm_storage.working import Working
from kvtier.client.native_copier import best_copier
from kvtier.client.page_client import PageClient
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import PageSpace

log = logging.getLogger("vllm.loadback")  # vLLM writes what is logged below its own name


@dataclass
class StepOrders(base.KVConnectorMetadata):  # type: ignore[misc,unused-ignore]
    orders: Orders


@dataclass
class WorkerSpace(base.KVConnectorHandshakeMetadata):  # type: ignore[misc,unused-ignore]
    space: PageSpace


class LoadbackConnector(base.KVConnectorBase_V1):  # type: ignore[misc,unused-ignore]
    """Made by vLLM's connector factory (`kv_connector_module_path`)."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Raises `ConnectorConfigError`, which ends the server's start: a setting that nobody reads would be a lie."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        check_engine(vllm_config, kv_cache_config)
        self._settings = connector_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._clients: list[PageClient] = []
        self._scheduling = Scheduling(self._look, self._block_tokens)
        self._working: Working | None = None
        self._space: PageSpace | None = None
        self._saves = True

    # In a worker.

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Raises `ConnectorConfigError`."""
        tensors = BlockTensors(kv_caches, self._kv_cache_config.num_blocks, _backends(self._vllm_config, kv_caches))
        rank = _rank()
        self._space = page_space(self._vllm_config, self._kv_cache_config, rank, tensors.layout, self._settings)
        self._saves = rank.tp % replicas(self._kv_cache_config) == 0
        client = _client(self._settings, self._space)
        self._working = Working(client, tensors, self._settings.load_s, self._settings.staging_bytes)
        log.info("KV blocks of %s at the agent behind %s", self._space, self._settings.socket)

    def get_handshake_metadata(self) -> WorkerSpace | None:
        return WorkerSpace(self._space) if self._space is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._working is not None:
            for order in self._orders().loads:
                self._working.load(order)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request's blocks are there before it is computed."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved whole, when the step has ended."""

    def wait_for_save(self) -> None:
        if self._working is not None and self._saves:
            for order in self._orders().saves:
                self._working.save(order)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        loaded = self._working.take_loaded() if self._working is not None else set()
        return None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._working.take_not_loaded() if self._working is not None else set()

    def shutdown(self) -> None:
        if self._working is not None:
            self._working.close()
        for client in self._clients:
            client.close()

    # In the scheduler.

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], WorkerSpace]) -> None:
        spaces = {worker.space for worker in metadata.values()}
        self._clients = [_client(self._settings, space) for space in spaces]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self._scheduling.matched_tokens(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduling.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        new, cached = scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_cached_reqs
        before = {request.req_id: request.num_computed_tokens for request in new}
        before |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        scheduled = {
            request: (before[request], tokens)
            for request, tokens in scheduler_output.num_scheduled_tokens.items()
            if request in before
        }

        def block_ids(request: str) -> Sequence[int]:
            return (scheduler_output.kv_connector_block_state.get_block_ids(request) or ((),))[0]

        return StepOrders(self._scheduling.orders(scheduled, block_ids, scheduler_output.finished_req_ids))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduling.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Forget this model's pages, for every engine that shares them."""
        cleared = [client.clear() for client in self._clients]
        return all(cleared)

    @property
    def requires_kv_delivery(self) -> bool:
        """A page that is not stored is a miss, no more."""
        return False

    def _look(self, digests: bytes) -> int:
        """The leading run that every rank could have."""
        run = len(digests) // DIGEST_BYTES
        for client in self._clients:
            run = min(run, client.look(digests, self._settings.ssd_pages))
            if not run:
                return 0
        return run if self._clients else 0

    def _orders(self) -> Orders:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepOrders)
        return metadata.orders


def _client(settings: ConnectorSettings, space: PageSpace) -> PageClient:
    return PageClient(Path(settings.socket), space, best_copier(settings.copy_threads), settings, settings.worker)


def _backends(vllm_config: Any, layers: Iterable[str]) -> dict[str, str]:
    """The attention code of each layer; layers that do not say have none."""
    modules = vllm_config.compilation_config.static_forward_context
    found = {layer: getattr(modules.get(layer), "get_attn_backend", None) for layer in layers}
    return {layer: ask().get_name() for layer, ask in found.items() if ask is not None}


def _rank() -> Rank:
    tp, pp = get_tp_group(), get_pp_group()
    return Rank(tp.rank_in_group, tp.world_size, pp.rank_in_group, pp.world_size)
