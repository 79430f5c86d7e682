"""A gateway that asks another UMBP master: what that knows of a prompt places its turn; one that is silent costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from grpc import aio
from prompt_stage import PromptStage, prompt_stage, talk

from costmodel.values import Tier, WorkerKey
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun
from kvtier.umbp import umbp_pb2 as pb
from kvtier.umbp.master import UmbpMaster
from kvtier.umbp.master_state import MasterState
from router.config.load import ConfigError, parse_config
from router.tiers.umbp_consult import UmbpConsult, believe


@pytest.fixture
async def master() -> AsyncIterator[UmbpMaster]:
    master = UmbpMaster(MasterState(BlockIndex(), Random(1)), lambda: 0.0)
    await master.start("127.0.0.1", 0)
    yield master
    await master.close()


async def report(master: UmbpMaster, node: str, hashes: list[int]) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{master.port}") as channel:
        requests: tuple[tuple[str, Any], ...] = (
            ("RegisterClient", pb.RegisterClientRequest(node_id=node, peer_address=f"{node}:1")),
            (
                "ReportExternalKvBlocks",
                pb.ReportExternalKvBlocksRequest(node_id=node, hashes=map(str, hashes), tier=pb.TIER_DRAM),
            ),
        )
        for method, request in requests:
            call: Any = channel.unary_unary(f"/umbp.UMBPMaster/{method}")
            await call(request.SerializeToString(), timeout=5)


def consult_of(stage: PromptStage) -> UmbpConsult:
    consult = stage.gateway.tiers.consult
    assert consult is not None
    return consult


async def test_what_the_master_knows_places_a_turn(master: UmbpMaster) -> None:
    asked = {"address": f"127.0.0.1:{master.port}", "nodes": {"u1": "mori-1"}, "deadline_ms": 5000.0}
    async with prompt_stage({"cold_deadline_ms": 5000.0}, index={"kv_events": False}, umbp_master=asked) as stage:
        first = await stage.turn({"messages": talk(6, lines=40)}, key="a")
        blocks = list(stage.thread(first).blocks)
        assert (consult_of(stage).counters.found, consult_of(stage).counters.nothing) == (0, 1)
        other = "u0" if first.worker == "u1" else "u1"
        await report(master, {"u0": "u0", "u1": "mori-1"}[other], blocks)
        again = await stage.turn({"messages": [*talk(6, lines=40), {"role": "user", "content": "more"}]}, key="b")
        assert consult_of(stage).counters.found == 1
        held = stage.gateway.fleet.pools["default"].blocks.match(blocks, 0.0)[WorkerKey(other)]
        assert held.runs == (BlockRun(0, len(blocks), Tier.L2),)
        assert again.decision is not None


async def test_a_silent_master_costs_nothing_but_its_knowledge() -> None:
    """A port that takes connections and says nothing."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asked = {"address": f"127.0.0.1:{port}", "deadline_ms": 20.0, "retry_ms": 3_600_000.0}
    async with prompt_stage({"cold_deadline_ms": 5000.0}, index={"kv_events": False}, umbp_master=asked) as stage:
        for _ in range(3):
            await stage.turn({"messages": talk(3)})
        counters = consult_of(stage).counters
        assert (counters.failed, counters.found, counters.nothing) == (1, 0, 0), "asked once, then left alone"
        text = (await stage.http.get("/metrics")).text
        assert 'loadback_umbp_questions_total{outcome="failed"} 1.0' in text
    for writer in held:
        writer.close()
    server.close()
    await server.wait_closed()


def test_an_answer_takes_the_place_of_the_last_one() -> None:
    index, worker = BlockIndex(), WorkerKey("w")
    believe(index, (1, 2, 3, 4), {worker: (BlockRun(0, 2, Tier.L1), BlockRun(2, 2, Tier.L2))}, 0.0)
    assert index.match((1, 2, 3, 4), 0.0)[worker].runs == (BlockRun(0, 2, Tier.L1), BlockRun(2, 2, Tier.L2))
    believe(index, (1, 2, 3, 4), {worker: (BlockRun(0, 1, Tier.L4),)}, 1.0)
    assert index.match((1, 2, 3, 4), 1.0)[worker].runs == (BlockRun(0, 1, Tier.L4),)
    believe(index, (1, 2, 3, 4), {worker: ()}, 2.0)
    assert worker not in index.match((1, 2, 3, 4), 2.0)


@pytest.mark.parametrize(
    ("section", "key"),
    [("{address: 'grpc://h:1'}", "umbp_master.address"), ("{address: 'h:1', pool: nowhere}", "umbp_master.pool")],
)
def test_the_master_must_have_an_address_and_a_pool(section: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_config(f"pools: [{{unified: [{{url: 'http://h:1'}}]}}]\numbp_master: {section}", "test", {})
