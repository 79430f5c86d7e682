"""The gateway as a UMBP master: what its clients report counts for the workers that store there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from grpc import aio

from costmodel.values import Tier, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.index.runs import BlockRun
from kvtier.umbp import umbp_pb2 as pb
from router.config.load import ConfigError, parse_config
from router.gateway import Gateway

YAML = """
pools: [{models: [m], unified: [{url: 'http://127.0.0.1:1', name: w0, node: n0}]}]
umbp: {port: 0, path: '%s'}
"""
DIGESTS = ["00" * 7 + f"{number:02x}" + "ab" * 24 for number in (1, 2, 3)]


async def test_pages_that_umbp_clients_report_are_restorable(tmp_path: Path) -> None:
    gateway = Gateway(parse_config(YAML % (tmp_path / "umbp"), "test", {}), lambda: 0.0, Random(1))
    await gateway.tiers.start()
    try:
        (worker,) = gateway.fleet.workers
        worker.discovered(EngineInfo("sglang", ("m",), page_size=16, flags={"hicache_storage_backend": "mori"}))
        gateway.tiers.followers.attach()
        assert gateway.tiers.umbp is not None
        async with aio.insecure_channel(f"127.0.0.1:{gateway.tiers.umbp.port}") as channel:
            await ask(channel, "RegisterClient", pb.RegisterClientRequest(node_id="n1", peer_address="n1:1"))
            events = [pb.KvEvent(key=f"{digest}_0", tier=pb.TIER_DRAM, size=1) for digest in DIGESTS]
            bundles = [pb.EventBundle(seq=1, events=events)]
            await ask(channel, "Heartbeat", pb.HeartbeatRequest(node_id="n1", bundles=bundles))
        index = gateway.fleet.pools["default"].blocks
        assert index.match((1, 2, 3, 4), 0.0)[WorkerKey("w0")].runs == (BlockRun(0, 3, Tier.L3, "n1"),)
    finally:
        await gateway.close()
    assert (tmp_path / "umbp").exists()


async def ask(channel: aio.Channel, method: str, request: object) -> bytes:
    return await channel.unary_unary(f"/umbp.UMBPMaster/{method}")(request.SerializeToString(), timeout=5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("pool", ["", ", pool: nowhere"])
def test_the_masters_pool_must_be_one(pool: str) -> None:
    pools = "[{name: a, unified: [{url: 'http://h:1'}]}, {name: b, unified: [{url: 'http://h:2'}]}]"
    with pytest.raises(ConfigError, match=r"umbp\.pool"):
        parse_config(f"pools: {pools}\numbp: {{port: 1{pool}}}", "test", {})
