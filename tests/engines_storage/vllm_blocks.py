"""Run by vLLM's own Python: blocks as tensors of several shapes, and the threads that load and save them, without an agent."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole  # type: ignore[import-not-found,unused-ignore]

from engine_adapters.vllm_storage.block_tensors import BlockTensors
from engine_adapters.vllm_storage.connector import LoadbackConnector, WorkerSpace
from engine_adapters.vllm_storage.orders import LoadBlocks, SaveBlocks
from engine_adapters.vllm_storage.settings import ConnectorConfigError
from engine_adapters.vllm_storage.working import Working
from kvtier.client.copier import PortableCopier
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.space import PageSpace, Shard

BLOCKS = 8
SHAPES = {
    "blocks first": (BLOCKS, 2, 4, 6),
    "keys and values first": (2, BLOCKS, 4, 6),
    "two kernel blocks in one": (2 * BLOCKS, 2, 2, 6),
}


def filled(shape: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(torch.Size(shape).numel(), dtype=torch.bfloat16).reshape(shape)


def blocks_survive_a_round_trip() -> None:
    for name, shape in SHAPES.items():
        caches = {f"layers.{number}.attn": filled(shape) for number in (10, 9)}
        strided = {"layers.11.attn": filled((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)}
        tensors = BlockTensors(caches | strided, BLOCKS, {})
        before = {layer: cache.clone() for layer, cache in (caches | strided).items()}
        host = tensors.copy_out([5, 2])
        with torch.inference_mode():
            for cache in (caches | strided).values():
                cache.zero_()
        tensors.copy_in(host, [5, 2])
        for layer, cache in (caches | strided).items():
            kept = (cache != 0).flatten().sum()
            right = torch.where(cache != 0, before[layer], cache)
            assert torch.equal(cache, right), name
            assert kept in (before[layer].numel() // BLOCKS * 2, before[layer].numel() // BLOCKS * 2 - 1), name
        pages = host.pages(2)
        assert (len(pages), pages.page_bytes) == (2, tensors.block_bytes), name


def layouts_tell_shapes_and_layers_apart() -> None:
    layouts = {
        BlockTensors({"layers.0": filled(SHAPES["blocks first"])}, BLOCKS, {}).layout,
        BlockTensors({"layers.0": filled(SHAPES["blocks first"])}, BLOCKS, {"layers.0": "SHUFFLED"}).layout,
        BlockTensors({"layers.1": filled(SHAPES["blocks first"])}, BLOCKS, {}).layout,
        BlockTensors({"layers.0": filled(SHAPES["two kernel blocks in one"])}, BLOCKS, {}).layout,
        BlockTensors({"layers.0": filled((BLOCKS, 2, 6, 4))}, BLOCKS, {}).layout,
        BlockTensors({"layers.0": filled(SHAPES["blocks first"]).to(torch.float16)}, BLOCKS, {}).layout,
    }
    assert len(layouts) == 6
    order = [BlockTensors({name: filled((BLOCKS, 2)) for name in names}, BLOCKS, {}).layout for names in ("ab", "ba")]
    assert order[0] == order[1]


def what_is_no_block_is_refused() -> None:
    for cache in (filled((BLOCKS + 1, 4)), [filled((BLOCKS, 4))]):
        said = ""
        try:
            BlockTensors({"layers.0": cache}, BLOCKS, {})
        except ConnectorConfigError as error:
            said = str(error)
        assert "layers.0" in said


def working(folder: Path, staging_bytes: int) -> Working:
    settings = ClientSettings(connect_s=0.05, get_s=0.1, put_s=0.1)
    space = PageSpace("m", "auto", "l", 32)
    client = PageClient(folder / "nobody.sock", space, PortableCopier(1), settings)
    return Working(client, BlockTensors({"layers.0": filled(SHAPES["blocks first"])}, BLOCKS, {}), 1.0, staging_bytes)


def without_an_agent_every_load_ends_and_says_what_is_not_there(folder: Path) -> None:
    work = working(folder, 1 << 20)
    work.load(LoadBlocks("r1", Random(1).randbytes(64), (3, 4)))
    work.load(LoadBlocks("r2", Random(2).randbytes(32), (6,)))
    ended: set[str] = set()
    wrong: set[int] = set()
    until_s = time.monotonic() + 20
    while ended != {"r1", "r2"}:
        assert time.monotonic() < until_s
        ended |= work.take_loaded()
        wrong |= work.take_not_loaded()  # asked second, as vLLM does: an ended load's blocks are known by then
        assert (ended >= {"r1"}) <= (wrong >= {3, 4})
        time.sleep(0.005)
    assert wrong == {3, 4, 6}
    work.close()
    assert (work.counters.blocks_not_loaded, work.counters.crashes) == (3, 0)


def saves_are_bounded_and_never_wait(folder: Path) -> None:
    work = working(folder, staging_bytes=2 * 2 * 4 * 6 * 2)  # two blocks
    gate = threading.Event()
    work._saver.submit(gate.wait)
    for _ in range(3):
        work.save(SaveBlocks(Random(1).randbytes(32), (1,), 0))
    assert work.counters.blocks_not_saved == 1
    gate.set()
    work._saver.submit(lambda: None).result(20)
    assert work.counters.blocks_not_saved == 3
    assert work.counters.crashes == 0
    work.save(SaveBlocks(Random(1).randbytes(64), (1, 2), 0))
    work._saver.submit(lambda: None).result(20)
    assert work.counters.blocks_not_saved == 5
    work.close()


class Looked:
    """A rank's client that has so many pages."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.asked = 0

    def look(self, digests: bytes, ssd_pages: int) -> int:
        self.asked += 1
        return self.pages

    def clear(self) -> bool:
        return self.pages > 0


def connector(**changes: Any) -> Any:
    part = SimpleNamespace(
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"socket": "/nobody.sock"},
        enable_prefix_caching=True,
        prefix_caching_hash_algo="sha256",
        **changes,
    )
    config = SimpleNamespace(cache_config=part, parallel_config=part, kv_transfer_config=part)
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=32))
    return LoadbackConnector(config, KVConnectorRole.SCHEDULER, SimpleNamespace(kv_cache_groups=[group]))


def a_prompt_counts_as_far_as_every_rank_has_it() -> None:
    made = connector()
    request = SimpleNamespace(request_id="r", num_tokens=321, block_hashes=[bytes([n]) * 32 for n in range(10)])
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)  # before the workers have spoken
    spaces = [PageSpace("m", "auto", "l", 32, shard=Shard(rank, 2)) for rank in range(2)]
    workers = {(0, rank): WorkerSpace(space) for rank, space in enumerate(spaces)}
    made.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(workers)))
    assert len(made._clients) == 2
    made.set_xfer_handshake_metadata_pp_aware({(0, rank): WorkerSpace(spaces[0]) for rank in range(2)})
    assert len(made._clients) == 1  # both hold the same
    made.shutdown()
    made._clients = [Looked(7), Looked(4)]
    assert made.get_num_new_matched_tokens(request, 0) == (4 * 32, True)
    made._clients = [Looked(0), Looked(4)]
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    assert made._clients[1].asked == 0
    assert not made.reset_cache()


def a_wrong_setting_ends_the_start() -> None:
    try:
        connector(decode_context_parallel_size=2)
    except ConnectorConfigError as error:
        said = str(error)
    assert "decode_context_parallel_size" in said


if __name__ == "__main__":
    blocks_survive_a_round_trip()
    layouts_tell_shapes_and_layers_apart()
    what_is_no_block_is_refused()
    without_an_agent_every_load_ends_and_says_what_is_not_there(Path(sys.argv[1]))
    saves_are_bounded_and_never_wait(Path(sys.argv[1]))
    a_prompt_counts_as_far_as_every_rank_has_it()
    a_wrong_setting_ends_the_start()
    print("all right")
