"""The class that SGLang loads, over a real agent: with the engine's own base class and host pool stood in for."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bench.reach.node import NodeAgent
from kvtier.page.space import REPLICATED, Shard

PAGE_TOKENS = 4
HALF = 2048
KEYS = [sha256(bytes([number])).hexdigest() for number in range(8)]


class HostPool:
    """`pages` pages of keys and as many of values, or of both together."""

    layout = "page_first_direct"
    dtype = "torch.bfloat16"
    page_size = PAGE_TOKENS

    def __init__(self, pages: int, fill: int | None = None, *, mla: bool = False) -> None:
        self._mla = mla
        self._buffer = ctypes.create_string_buffer(2 * HALF * pages)
        self._base = ctypes.addressof(self._buffer)
        if fill is not None:
            for page in range(pages):
                for address, length in zip(*self.get_page_buffer_meta(self.indices([page])), strict=True):
                    ctypes.memset(address, fill + page, length)

    @staticmethod
    def indices(pages: list[int]) -> list[int]:
        return [page * PAGE_TOKENS + token for page in pages for token in range(PAGE_TOKENS)]

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        addresses = []
        for first in indices[::PAGE_TOKENS]:
            start = self._base + first // PAGE_TOKENS * 2 * HALF
            addresses += [start] if self._mla else [start, start + HALF]
        return addresses, [2 * HALF if self._mla else HALF] * len(addresses)

    def content(self, page: int) -> set[int]:
        start = page * 2 * HALF
        return set(self._buffer.raw[start : start + 2 * HALF])


def config(**more: Any) -> SimpleNamespace:
    """As `HiCacheStorageConfig`."""
    plain = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "is_mla_model": False, "model_name": "m"}
    return SimpleNamespace(**{**plain, "extra_config": {"interface_v1": 1, "socket": "/nowhere", "backend_name": "x"}, **more})


@pytest.fixture
def storage_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    class HiCacheStorage:
        def register_mem_pool_host(self, mem_pool_host: Any) -> None:
            self.mem_pool_host = mem_pool_host

        def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
            self.registered = host_pool_name

    parts = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage")
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[parts[-1]].HiCacheStorage = HiCacheStorage  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "engine_adapters.sglang_storage.storage", raising=False)
    from engine_adapters.sglang_storage.storage import LoadbackStorage

    yield LoadbackStorage
    sys.modules.pop("engine_adapters.sglang_storage.storage", None)


@pytest.fixture
async def agent(tmp_path: Path) -> Any:
    node = NodeAgent(tmp_path, dram_bytes=2 << 20)
    await node.start()
    yield node
    await node.stop()


Attach = Callable[..., "Rank"]


@pytest.fixture
def attach(storage_class: type) -> Iterator[Attach]:
    """Makes ranks, closed when the test ends."""
    ranks: list[Rank] = []

    def make(socket: Path, pool: HostPool, **more: Any) -> Rank:
        ranks.append(Rank(storage_class, socket, pool, **more))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.storage.close()


class Rank:
    """One rank of a server, attached."""

    def __init__(self, storage_class: type, socket: Path, pool: HostPool, **more: Any) -> None:
        extra = {"interface_v1": 1, "socket": str(socket), "connect_s": 5, "look_s": 5, "get_s": 5, "put_s": 5}
        self.pool = pool
        self.storage = storage_class(config(extra_config=extra | more.pop("extra", {}), **more))
        self.storage.register_mem_pool_host(pool)

    def set(self, pages: int) -> list[bool]:
        return list(self.storage.batch_set_v1(KEYS[:pages], self.pool.indices(list(range(pages))), None))

    def get(self, keys: list[str]) -> list[bool]:
        return list(self.storage.batch_get_v1(keys, self.pool.indices(list(range(len(keys)))), None))


async def test_what_one_server_set_another_gets(attach: Attach, agent: NodeAgent) -> None:
    writer, reader = (attach(agent.socket, HostPool(8, fill)) for fill in (10, None))
    assert writer.set(5) == [True] * 5
    assert reader.storage.batch_exists(KEYS) == 5
    assert reader.storage.batch_exists(KEYS[5:]) == 0
    assert (reader.storage.exists(KEYS[0]), reader.storage.exists(KEYS[6])) == (True, False)
    assert reader.get(KEYS[:6]) == [True] * 5 + [False]
    assert [reader.pool.content(page) for page in range(5)] == [{10 + page} for page in range(5)]
    assert writer.set(5) == [True] * 5
    assert (await agent.numbers())["stored"] == 5
    reader.storage.clear()
    assert writer.storage.batch_exists(KEYS) == 0


async def test_ranks_of_an_mla_model_share_pages_and_others_do_not(attach: Attach, agent: NodeAgent) -> None:
    for mla in (True, False):
        shape = {"tp_size": 2, "is_mla_model": mla, "model_name": str(mla)}
        ranks = [attach(agent.socket, HostPool(4, 40, mla=mla), tp_rank=rank, **shape) for rank in range(2)]
        ranks[0].set(3)
        assert ranks[1].storage.batch_exists(KEYS) == (3 if mla else 0)


@pytest.mark.parametrize("extra", [{"namespace": "other"}, {"revision": "2"}, {"model": "n"}])
async def test_pages_of_another_identity_are_not_met(attach: Attach, agent: NodeAgent, extra: dict[str, str]) -> None:
    attach(agent.socket, HostPool(4, 1)).set(3)
    assert attach(agent.socket, HostPool(4), extra=extra).storage.batch_exists(KEYS) == 0
    assert attach(agent.socket, HostPool(4)).storage.batch_exists(KEYS) == 3


async def test_a_dead_agent_means_misses(attach: Attach, agent: NodeAgent) -> None:
    rank = attach(agent.socket, HostPool(4, 1))
    assert rank.set(2) == [True] * 2
    await agent.kill()
    assert (rank.get(KEYS[:2]), rank.storage.batch_exists(KEYS), rank.set(2)) == ([False] * 2, 0, [False] * 2)


def test_no_agent_means_misses(attach: Attach, tmp_path: Path) -> None:
    rank = attach(tmp_path / "nobody.sock", HostPool(4))
    assert (rank.storage.batch_exists(KEYS), rank.get(KEYS[:1]), rank.set(1)) == (0, [False], [False])


def test_keys_of_another_kind_are_misses(attach: Attach, tmp_path: Path) -> None:
    rank = attach(tmp_path / "nobody.sock", HostPool(4))
    assert (rank.storage.batch_exists(["salt-7"]), rank.get(["salt-7"])) == (0, [False])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"interface_v1": 0, "socket": "/s"}, '"interface_v1": 1'),
        ({"interface_v1": 1}, "socket"),
        ({"interface_v1": 1, "socket": "/s", "look": 5}, "look"),
    ],
)
def test_settings_that_would_be_ignored_end_the_start(storage_class: type, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        storage_class(config(extra_config=extra))


def test_layouts_and_pools_that_cannot_be_stored_end_the_start(storage_class: type) -> None:
    pool = HostPool(1)
    pool.layout = "layer_first"
    with pytest.raises(ValueError, match="page_first"):
        storage_class(config()).register_mem_pool_host(pool)
    with pytest.raises(ValueError, match="mamba"):
        storage_class(config()).register_mem_host_pool_v2(pool, "mamba")
    with pytest.raises(ValueError, match="tp_lcm_size"):
        storage_class(config(should_split_heads=True)).register_mem_pool_host(HostPool(1))


def test_the_space_tells_ranks_apart() -> None:
    from engine_adapters.sglang_storage.settings import StorageSettings
    from engine_adapters.sglang_storage.space import page_space

    settings = StorageSettings(socket="/s")
    split = page_space(config(tp_rank=1, tp_size=4, pp_rank=1, pp_size=2, dcp_size=2, dcp_rank=1), HostPool(1), settings)
    assert split.shard == Shard(1, 4, 1, 2, 1, 2)
    assert (split.kv_dtype, split.layout, split.page_tokens) == ("bfloat16", "page_first_direct", PAGE_TOKENS)
    same = page_space(config(tp_rank=3, tp_size=4, is_mla_model=True), HostPool(1), settings)
    assert same.shard == Shard(REPLICATED)
