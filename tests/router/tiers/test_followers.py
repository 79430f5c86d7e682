"""Which workers reach the pages of which agents, and which spaces belong to which pool."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.values import Tier, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.index.events import BlocksStored
from kvtier.index.runs import BlockRun
from kvtier.index.source_key import NodeKey
from kvtier.page.space import PageSpace
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import Peer
from router.config.tree import Config
from router.fleet.fleet import Fleet
from router.fleet.followers import Followers, serves

MODEL = "org/model-7b"


def fleet_of(*workers: dict[str, Any], flags: dict[str, Any] | None = None) -> Fleet:
    fleet = Fleet(Config.model_validate({"pools": [{"models": [MODEL], "unified": list(workers)}]}))
    for worker in fleet.workers:
        worker.discovered(EngineInfo("sglang", (MODEL,), page_size=16, flags=flags or {}))
    return fleet


def followers_of(fleet: Fleet, *nodes: str, remote: bool = True) -> Followers:
    peers = {node: Peer(node, "127.0.0.1", 1) for node in nodes}
    return Followers(peers, PeerLinks(LinkSettings()), fleet, lambda: 0.0, remote=remote)


@pytest.mark.parametrize(
    ("flags", "reached"),
    [
        ({"hicache_storage_backend": "dynamic"}, {"w0": "a", "w1": "a"}),
        ({"hicache_storage_backend": "file"}, {}),
        ({}, {"w0": "a"}),
    ],
)
async def test_a_worker_reaches_the_pool_if_its_engine_stores_there(flags: dict[str, Any], reached: dict[str, str]) -> None:
    workers = ({"url": "http://h1:1", "name": "w0", "node": "a"}, {"url": "http://h2:1", "name": "w1", "node": "elsewhere"})
    fleet = fleet_of(*workers, flags=flags)
    index = fleet.pools["default"].blocks
    index.apply(NodeKey("a"), BlocksStored((1, 2), None, Tier.L3, 16), 0.0)
    followers_of(fleet, "a").attach()
    found = {worker: match.runs for worker, match in index.match((1, 2), 0.0).items()}
    assert found == {WorkerKey(name): (BlockRun(0, 2, Tier.L3, node),) for name, node in reached.items()}


@pytest.mark.parametrize(("flags", "reached"), [({}, {"p0"}), ({"hicache_storage_backend": "dynamic"}, {"p0", "d0"})])
async def test_a_decode_worker_that_tells_of_no_storage_reads_no_pages(flags: dict[str, Any], reached: set[str]) -> None:
    names = {"prefill": "p0", "decode": "d0"}
    workers = {role: [{"url": f"http://{name}:1", "name": name, "node": "a"}] for role, name in names.items()}
    fleet = Fleet(Config.model_validate({"pools": [{"models": [MODEL], **workers}]}))
    for worker in fleet.workers:
        worker.discovered(EngineInfo("sglang", (MODEL,), page_size=16, flags=flags))
    index = fleet.pools["default"].blocks
    index.apply(NodeKey("a"), BlocksStored((1, 2), None, Tier.L3, 16), 0.0)
    followers_of(fleet, "a").attach()
    assert {key.worker_id for key in index.match((1, 2), 0.0)} == reached


async def test_where_nothing_is_brought_near_the_pages_of_the_own_node_alone_count() -> None:
    workers = ({"url": "http://h1:1", "name": "w0", "node": "a"}, {"url": "http://h2:1", "name": "w1", "node": "b"})
    fleet = fleet_of(*workers, flags={"hicache_storage_backend": "dynamic"})
    index = fleet.pools["default"].blocks
    index.apply(NodeKey("a"), BlocksStored((1, 2), None, Tier.L3, 16), 0.0)
    followers_of(fleet, "a", "b", remote=False).attach()
    assert set(index.match((1, 2), 0.0)) == {WorkerKey("w0")}


def test_a_space_belongs_to_the_pool_of_its_model_and_page_size() -> None:
    (pool,) = fleet_of({"url": "http://h1:1"}).pools.values()
    assert serves(pool, PageSpace("/models/model-7b/", "bfloat16", "page_first", 16))
    assert not serves(pool, PageSpace("model-7b", "bfloat16", "page_first", 64))
    assert not serves(pool, PageSpace("model-8b", "bfloat16", "page_first", 16))
