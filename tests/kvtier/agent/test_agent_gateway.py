"""A gateway with real agents: what they hold counts for workers, /admin/tiers and /metrics tell it, /v1/kv/pins keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from agent_rig import PAGE_BYTES, SPACE, agent_here, config_of, digest, eventually, get, put

from costmodel.values import Tier, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.agent.agent import Agent
from kvtier.client.page_client import PageClient
from kvtier.index.runs import BlockRun
from kvtier.store.journal import event_id
from router.app import build_app, build_routes
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway

Connect = Callable[..., PageClient]
P0 = WorkerKey("p0")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return config_of(tmp_path, pool_mib=4, control={"host": "127.0.0.1"})


@pytest.fixture
async def agent(config: dict[str, Any]) -> AsyncIterator[Agent]:
    async with agent_here(config) as agent:
        yield agent


@pytest.fixture
async def client(agent: Agent, config: dict[str, Any], connect: Connect) -> PageClient:
    """Of the agent, which holds four pages."""
    client = connect(config)
    assert all(await asyncio.to_thread(put, client, range(4)))
    return client


@pytest.fixture(params=["wire", "grpc"])
async def gateway(request: pytest.FixtureRequest, agent: Agent, client: PageClient) -> AsyncIterator[Gateway]:
    """`client` comes first: a space that the first look finds is followed at once, a later one only with the next look."""
    assert agent.control is not None
    peer = {"node": "a", "host": "127.0.0.1", "port": agent.port}
    if request.param == "grpc":
        peer["control_port"] = agent.control.port
    worker = {"url": "http://127.0.0.1:1", "name": "p0", "node": "a"}
    tree = {"pools": [{"models": ["m"], "unified": [worker]}], "agents": [peer], "pins": {"max_pins": 2, "max_ttl_s": 100}}
    gateway = Gateway(Config.model_validate(tree), system_clock, Random(1))
    gateway.fleet.workers[0].discovered(EngineInfo("sglang", ("m",), page_size=16))
    await gateway.tiers.start()
    yield gateway
    await gateway.close()


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(gateway, build_routes(gateway))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.fixture
async def filled(gateway: Gateway, client: PageClient) -> PageClient:
    """Whose four pages the gateway knows of."""
    await gateway.tiers.nodes.ask("a")
    pool = gateway.fleet.pools["default"]
    blocks = [event_id(digest(number)) for number in range(4)]
    await eventually(lambda: P0 in pool.blocks.match(blocks, system_clock()), "the pages are followed")
    assert pool.blocks.match(blocks, system_clock())[P0].runs == (BlockRun(0, 4, Tier.L3, "a"),)
    return client


async def test_admin_and_metrics_tell_the_tiers(filled: PageClient, gateway: Gateway, http: httpx.AsyncClient) -> None:
    assert await asyncio.to_thread(get, filled, [0, 1]) == [True, True]
    await gateway.tiers.nodes.ask("a")
    told = (await http.get("/admin/tiers")).json()
    (row,) = told["tiers"]
    assert (row["node"], row["tier"], row["pages"], row["used_bytes"]) == ("a", "L3", 4, 4 * PAGE_BYTES)
    assert (row["hits"], row["checksum_failures"]) == (2, 0)
    (node,) = told["nodes"]
    assert (node["up"], len(node["spaces"]), node["spaces"][0][0]) == (True, 1, SPACE.model)
    assert told["agents"][0]["live"]
    metrics = (await http.get("/metrics")).text
    assert 'loadback_tier_pages{node="a",tier="L3"} 4.0' in metrics
    assert 'loadback_node_up{node="a"} 1.0' in metrics


async def test_pins_come_and_go(filled: PageClient, http: httpx.AsyncClient) -> None:
    hashes = [digest(number).hex() for number in (0, 1, 9)]
    made = await http.post("/v1/kv/pins", json={"hashes": hashes, "ttl_s": 1000})
    assert made.status_code == 201, made.text
    pin = made.json()
    assert pin["nodes"] == [{"node": "a", "status": "OK", "pages": 2, "fault": ""}]
    assert 90 < pin["expires_in_s"] <= 100
    await asyncio.to_thread(put, filled, range(100, 300))  # more than the pool holds
    assert await asyncio.to_thread(get, filled, range(4)) == [True, True, False, False]
    assert [each["id"] for each in (await http.get("/v1/kv/pins")).json()["data"]] == [pin["id"]]
    assert (await http.get(f"/v1/kv/pins/{pin['id']}")).json()["pages"] == 2
    assert (await http.delete(f"/v1/kv/pins/{pin['id']}")).status_code == 200
    assert (await http.get(f"/v1/kv/pins/{pin['id']}")).status_code == 404
    await asyncio.to_thread(put, filled, range(300, 500))
    assert await asyncio.to_thread(get, filled, [0]) == [False]


async def test_pins_are_bounded_and_refusals_say_why(filled: PageClient, http: httpx.AsyncClient) -> None:
    body = {"hashes": [digest(0).hex()]}
    assert [(await http.post("/v1/kv/pins", json=body)).status_code for _ in range(3)] == [201, 201, 429]
    for broken in ({}, {"hashes": ["zz"]}, {"hashes": ["00"], "thread": "x"}, {**body, "ttl_s": 0}):
        assert (await http.post("/v1/kv/pins", json=broken)).status_code in (400, 429), broken
    assert (await http.post("/v1/kv/pins", json={"thread": "unknown"})).status_code == 404


async def test_nothing_there_is_pinned_nowhere(filled: PageClient, http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/kv/pins", json={"hashes": [digest(77).hex()]})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (409, "nothing_pinned")
    assert error["message"] == "nothing was pinned: a MISS (has none of it in DRAM)"
    assert (await http.get("/v1/kv/pins")).json()["data"] == []
    assert (await http.post("/v1/kv/pins", json={"hashes": [digest(0).hex()], "node": "b"})).status_code == 404


async def test_a_prompt_above_the_cap_by_itself_is_told(filled: PageClient, gateway: Gateway, http: httpx.AsyncClient) -> None:
    """4 MiB of DRAM, of which 0.3 may be pinned: 38 pages of 32 KiB."""
    assert all(await asyncio.to_thread(put, filled, range(4, 50)))
    pool = gateway.fleet.pools["default"]
    blocks = [event_id(digest(number)) for number in range(50)]
    whole = (BlockRun(0, 50, Tier.L3, "a"),)
    await eventually(lambda: pool.blocks.match(blocks, system_clock())[P0].runs == whole, "the pages are followed")
    refused = await http.post("/v1/kv/pins", json={"hashes": [digest(number).hex() for number in range(50)]})
    assert refused.status_code == 409, refused.text
    told = "the prompt's 50 pages are more than its dram.max_pinned_share allows: 38 of them at most"
    assert refused.json()["error"]["message"] == f"nothing was pinned: a BUSY ({told})"


async def test_an_agent_that_is_away_is_told(agent: Agent) -> None:
    peer = {"node": "b", "host": "127.0.0.1", "port": agent.port}
    tree = {"pools": [{"models": ["m"], "unified": [{"url": "http://127.0.0.1:1"}]}], "agents": [peer]}
    gateway = Gateway(Config.model_validate(tree), system_clock, Random(1))
    try:
        await gateway.tiers.nodes.ask("b")
        assert "not b" in gateway.tiers.nodes.by_name["b"].fault
    finally:
        await gateway.close()
