"""Our master answers bytes made by hand from UMBP's field table with bytes that such a table gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import grpc
import pytest
from field_table import (
    ADD,
    DRAM,
    HBM,
    REMOVE,
    SSD,
    blob,
    bundle,
    heartbeat,
    heartbeat_reply,
    kv_event,
    node_match,
    number,
    packed,
    register,
    text,
    texts,
    tier_capacity,
    tier_hashes,
)
from grpc import aio

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun
from kvtier.index.source_key import NodeKey
from kvtier.settings.address import AddressTaken
from kvtier.umbp.master import UmbpMaster
from kvtier.umbp.master_state import MasterState
from kvtier.umbp.reader import MasterUnavailable, UmbpReader, leading_runs

Ask = Callable[[str, bytes], Awaitable[bytes]]
SHA = "00ff" * 16


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(max_entries=4096, max_sources=16)


@pytest.fixture
async def master(index: BlockIndex) -> AsyncIterator[UmbpMaster]:
    master = UmbpMaster(MasterState(index, Random(1)), lambda: 0.0)
    await master.start("127.0.0.1", 0)
    yield master
    await master.close()


@pytest.fixture
async def ask(master: UmbpMaster) -> AsyncIterator[Ask]:
    """Raw bytes to a method, raw bytes back."""
    async with aio.insecure_channel(f"127.0.0.1:{master.port}") as channel:

        async def call(method: str, request: bytes) -> bytes:
            return await channel.unary_unary(f"/umbp.UMBPMaster/{method}")(request, timeout=10)

        yield call


@pytest.fixture
async def reader(master: UmbpMaster) -> AsyncIterator[UmbpReader]:
    reader = UmbpReader(f"127.0.0.1:{master.port}", 10)
    yield reader
    await reader.close()


async def registered(ask: Ask, node: str = "n1", room: int = 100) -> bytes:
    capacities = [tier_capacity(DRAM, 100, room), tier_capacity(SSD, 1 << 40, 1 << 40)]
    request = register(node, "10.0.0.1:1", f"{node}:16001", capacities=capacities, engine=b"\0\xff", tags=["a=b", "c=d"])
    return await ask("RegisterClient", request)


async def test_a_port_is_one_masters(master: UmbpMaster, index: BlockIndex, tmp_path: Path) -> None:
    kept = tmp_path / "umbp.state"
    kept.write_bytes(b"another's picture")
    second = UmbpMaster(MasterState(index, Random(1)), lambda: 0.0, kept)
    with pytest.raises(AddressTaken, match=rf"^umbp\.port: cannot listen on 127\.0\.0\.1:{master.port} \("):
        await second.start("127.0.0.1", master.port)
    await second.close()
    assert kept.read_bytes() == b"another's picture"


async def test_register_and_heartbeat(ask: Ask, master: UmbpMaster) -> None:
    assert await registered(ask) == number(1, 5000)
    client = master.state.clients.by_id["n1"]
    assert (client.peer_address, client.engine_desc, client.tags) == ("n1:16001", b"\0\xff", ("a=b", "c=d"))
    events = [kv_event(ADD, f"{SHA}_k", DRAM, 4096), kv_event(ADD, "other", SSD, 1 << 33)]
    assert await ask("Heartbeat", heartbeat("n1", [bundle(1, events)], counts=[(DRAM, 1), (SSD, 1)])) == heartbeat_reply(1, 1)
    assert await ask("Heartbeat", heartbeat("n1", [bundle(1, events)])) == heartbeat_reply(1, 1), "a retransmission is skipped"
    removal = [kv_event(REMOVE, "other", SSD, 0)]
    assert await ask("Heartbeat", heartbeat("n1", [bundle(3, removal)])) == heartbeat_reply(1, 1, full_sync=True), "a gap"
    assert await ask("Heartbeat", heartbeat("stranger")) == heartbeat_reply(0)
    full = heartbeat("n1", [bundle(7, [kv_event(ADD, "third", DRAM, 5)])], full=True, baseline=7)
    assert await ask("Heartbeat", full) == heartbeat_reply(1, 7)
    assert await ask("BatchLookup", text(1, "me") + texts(2, ["third", f"{SHA}_k"])) == packed(1, [1, 0])


async def test_routes(ask: Ask) -> None:
    await registered(ask, "n1", room=50)
    await registered(ask, "n2", room=80)
    await ask("Heartbeat", heartbeat("n1", [bundle(1, [kv_event(ADD, "k1", DRAM, 11), kv_event(ADD, "k2", SSD, 12)])]))
    await ask("Heartbeat", heartbeat("n2", [bundle(1, [kv_event(ADD, "k2", DRAM, 12)])]))
    found = number(1, 1) + text(2, "n1") + number(3, DRAM) + number(4, 11) + text(5, "n1:16001")
    assert await ask("RouteGet", text(1, "k1") + text(2, "me")) == found
    assert await ask("RouteGet", text(1, "k1") + text(2, "me") + texts(3, ["n1"])) == b""
    columns = await ask("BatchRouteGet", text(1, "me") + texts(2, ["k2", "nowhere", "k1", "k2"]))
    nodes = [text(1, "n2") + text(2, "n2:16001"), text(1, "n1") + text(2, "n1:16001")]
    assert columns == b"".join(blob(1, each) for each in nodes) + packed(2, [1, 0, 2, 1]) + packed(
        3, [DRAM, 0, DRAM, DRAM]
    ) + packed(4, [12, 0, 11, 12])
    routed = number(1, 1) + text(2, "n2") + number(3, DRAM) + text(4, "n2:16001")
    assert await ask("RoutePut", text(1, "new") + text(2, "me") + number(3, 70)) == routed
    entries = await ask("BatchRoutePut", text(1, "me") + texts(2, ["a", "b", "k1", "c"]) + packed(3, [60, 50, 1, 40]))
    n1 = number(1, 1) + text(2, "n1") + number(3, DRAM) + text(4, "n1:16001")
    assert entries == blob(1, routed) + blob(1, n1) + blob(1, number(1, 2)) + blob(1, b"")


async def test_engine_blocks_and_hits(ask: Ask, index: BlockIndex) -> None:
    await registered(ask)
    await ask("ReportExternalKvBlocks", text(1, "n1") + texts(2, ["-5", "7", "9"]) + number(3, HBM))
    await ask("ReportExternalKvBlocks", text(1, "n1") + texts(2, ["7"]) + number(3, DRAM))
    await ask("ReportExternalKvBlocks", text(1, "stranger") + texts(2, ["7"]) + number(3, DRAM))
    await ask("Heartbeat", heartbeat("n1", [bundle(1, [kv_event(ADD, f"{SHA}_0_k", DRAM, 4096)])]))
    assert index.match((-5, 7, 9), 0.0)[WorkerKey("n1")].runs == (BlockRun(0, 3, Tier.L1),)
    sha_id = int.from_bytes(bytes.fromhex(SHA)[:8], "big", signed=True)
    assert index.holders(sha_id) == [(NodeKey("n1", "umbp"), Tier.L3)]
    reply = await ask("MatchExternalKv", texts(1, ["7", "-5", SHA, "nowhere"]) + number(2, 1))
    tiers = [tier_hashes(HBM, ["7", "-5"]), tier_hashes(DRAM, ["7", SHA])]
    assert reply == blob(1, node_match("n1", "n1:16001", tiers))
    await ask("MatchExternalKv", texts(1, ["7"]) + number(2, 1))
    counts = await ask("GetExternalKvHitCounts", texts(1, ["7", "nowhere", "-5"]))
    assert counts == blob(1, text(1, "7") + number(2, 2)) + blob(1, text(1, "-5") + number(2, 1))
    await ask("RevokeExternalKvBlocks", text(1, "n1") + texts(2, ["7"]) + number(3, HBM))
    await ask("RevokeAllExternalKvBlocksAtTier", text(1, "n1") + number(2, DRAM))
    assert index.holders(7) == []
    assert index.holders(9) == [(WorkerKey("n1"), Tier.L1)]
    await ask("RevokeAllExternalKvBlocksForNode", text(1, "n1"))
    assert await ask("MatchExternalKv", texts(1, ["9", "-5"])) == b""
    await ask("UnregisterClient", text(1, "n1"))
    assert not index.sources


async def test_metrics_and_refusals(ask: Ask) -> None:
    sample = text(1, "m") + blob(3, text(1, "l") + text(2, "v")) + b"\x21" + bytes(8)
    assert await ask("ReportMetrics", text(1, "n1") + blob(2, sample)) == b""
    await registered(ask)
    with pytest.raises(aio.AioRpcError) as refused:
        await ask("RegisterClient", register("n1", "", "elsewhere:1"))
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    with pytest.raises(aio.AioRpcError) as nameless:
        await ask("RegisterClient", register("", "", "elsewhere:1"))
    assert nameless.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(aio.AioRpcError) as too_many:
        await ask("GetExternalKvHitCounts", texts(1, map(str, range(4097))))
    assert too_many.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(aio.AioRpcError) as uneven:
        await ask("BatchRoutePut", texts(2, ["a"]))
    assert uneven.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_reader_finds_leading_runs(ask: Ask, reader: UmbpReader) -> None:
    await registered(ask)
    await ask("ReportExternalKvBlocks", text(1, "n1") + texts(2, ["1", "2", "4"]) + number(3, HBM))
    await ask("ReportExternalKvBlocks", text(1, "n1") + texts(2, ["2", "3"]) + number(3, DRAM))
    await ask("Heartbeat", heartbeat("n1", [bundle(1, [kv_event(ADD, "page", DRAM, 1)])]))
    runs = (BlockRun(0, 2, Tier.L1), BlockRun(2, 1, Tier.L2), BlockRun(3, 1, Tier.L1))
    assert await reader.leading(["1", "2", "3", "4", "5"], count_as_hit=True) == {"n1": runs}
    assert await reader.leading(["5", "1"]) == {}
    assert await reader.lookup(["page", "nowhere"]) == [True, False]


class StrangeMaster:
    """Answers with bytes from the table, whatever is asked, and keeps the last request: a master that is not ours."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.asked: tuple[str, bytes] = ("", b"")

    async def serve(self) -> tuple[aio.Server, int]:
        server = aio.server()
        server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:  # type: ignore[type-arg]
        async def answer(request: bytes, _: object) -> bytes:
            self.asked = (details.method, request)
            return self.reply

        return grpc.unary_unary_rpc_method_handler(answer)  # type: ignore[arg-type]


async def test_the_reader_speaks_the_table_to_a_master_that_is_not_ours() -> None:
    matches = [
        node_match("x", "x:1", [tier_hashes(DRAM, ["b", "a"]), tier_hashes(HBM, ["a"])]),
        node_match("y", "", [tier_hashes(SSD, ["b"])]),
    ]
    strange = StrangeMaster(b"".join(blob(1, each) for each in matches))
    server, port = await strange.serve()
    reader = UmbpReader(f"127.0.0.1:{port}", 10)
    try:
        assert await reader.leading(["a", "b"], count_as_hit=True) == {"x": (BlockRun(0, 1, Tier.L1), BlockRun(1, 1, Tier.L2))}
        assert strange.asked == ("/umbp.UMBPMaster/MatchExternalKv", texts(1, ["a", "b"]) + number(2, 1))
    finally:
        await server.stop(None)
        with pytest.raises(MasterUnavailable):
            await reader.lookup(["a"])
        await reader.close()


def test_leading_runs_take_the_nearest_tier() -> None:
    held = {HBM: {"b"}, DRAM: {"a", "b"}, SSD: {"c", "a"}, 0: {"d"}}
    assert leading_runs(["a", "b", "c", "d"], held) == (
        BlockRun(0, 1, Tier.L2),
        BlockRun(1, 1, Tier.L1),
        BlockRun(2, 1, Tier.L4),
    )


async def test_pool_pages_that_agents_told_of_are_found_by_umbp_clients(ask: Ask, index: BlockIndex) -> None:
    index.apply(NodeKey("agent-1"), BlocksStored((7,), None, Tier.L3, 16), 0.0)
    assert await ask("MatchExternalKv", texts(1, ["7"])) == blob(1, node_match("agent-1", "", [tier_hashes(DRAM, ["7"])]))
