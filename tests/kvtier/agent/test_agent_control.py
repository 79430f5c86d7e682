"""What gateways ask of an agent, over its own wire and over gRPC: the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from agent_rig import PAGE_BYTES, SPACE, agent_here, config_of, digest, digests, get, peer_of, put
from grpc import aio

from kvtier.agent.agent import Agent
from kvtier.client.page_client import PageClient
from kvtier.control import control_pb2 as pb
from kvtier.control.grpc_control import SERVICE, GrpcControl
from kvtier.control.node_control import CutOrder, NodeControl, NodeUnavailable, PinOrder
from kvtier.control.wire_control import WireControl
from kvtier.page.status import Status
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import MAX_SPACES

Connect = Callable[..., PageClient]
DEEP_SPACE = (
    msgspec.msgpack.encode(SPACE).replace(b"\x98", b"\x99", 1) + b"\x91" * 50_000 + b"\0"
)  # where a later version may have a field


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return config_of(tmp_path, pool_mib=4, control={"host": "127.0.0.1"})


@pytest.fixture
async def agent(config: dict[str, Any]) -> AsyncIterator[Agent]:
    async with agent_here(config, epoch=77) as agent:
        yield agent


@pytest.fixture
async def links() -> AsyncIterator[PeerLinks]:
    links = PeerLinks(LinkSettings())
    yield links
    await links.close()


@pytest.fixture(params=["wire", "grpc"])
async def control(request: pytest.FixtureRequest, agent: Agent, links: PeerLinks) -> AsyncIterator[NodeControl]:
    assert agent.control is not None
    made: NodeControl = WireControl(peer_of(agent), links, 5.0)
    if request.param == "grpc":
        made = GrpcControl("a", f"127.0.0.1:{agent.control.port}", 5.0)
    yield made
    await made.close()


async def test_a_report_has_numbers_and_spaces(
    control: NodeControl, config: dict[str, Any], connect: Connect, agent: Agent
) -> None:
    assert all(await asyncio.to_thread(put, connect(config), range(3)))
    report = await control.report()
    assert (report.node, report.epoch, report.spaces) == ("a", 77, (SPACE.whole,))
    assert (report.numbers["stored"], report.numbers["pages"]) == (3, 3)
    assert set(report.numbers) == set(agent.numbers())


async def test_pins_keep_pages_until_they_are_taken_back(
    control: NodeControl, config: dict[str, Any], connect: Connect
) -> None:
    client = connect(config)
    assert all(await asyncio.to_thread(put, client, range(4)))
    kept, none = await control.pin([PinOrder(SPACE, digests([0, 1]), 60_000.0), PinOrder(SPACE, digests([2, 9]), 60_000.0)])
    assert (kept.status, kept.pages, none.status) == (Status.OK, 2, Status.MISS)
    await asyncio.to_thread(put, client, range(100, 300))  # more than the pool holds
    assert await asyncio.to_thread(get, client, range(4)) == [True, True, False, False]
    assert (await control.report()).numbers["pinned_bytes"] == 2 * PAGE_BYTES
    assert (await control.unpin([kept.pin, 4711]))[0:2] == [True, False]
    assert (await control.report()).numbers["pinned_bytes"] == 0


async def test_cuts_are_set(control: NodeControl, config: dict[str, Any], connect: Connect) -> None:
    client = connect(config, worker="p0")
    assert all(await asyncio.to_thread(put, client, range(4)))
    assert await asyncio.to_thread(client.look, digests(range(4))) == 4
    await control.set_cuts([CutOrder("p0", digest(2), 60_000.0), CutOrder("p1", digest(1), 60_000.0)])
    assert await asyncio.to_thread(client.look, digests(range(4))) == 2


async def test_who_is_not_there_is_said_to_be_unavailable(links: PeerLinks, agent: Agent) -> None:
    assert agent.control is not None
    stranger = GrpcControl("b", f"127.0.0.1:{agent.control.port}", 5.0)
    gone = GrpcControl("a", "127.0.0.1:1", 1.0)
    for control in (stranger, gone):
        with pytest.raises(NodeUnavailable):
            await control.report()
        await control.close()


async def test_broken_requests_are_refused_and_not_logged(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    assert agent.control is not None
    pins = [
        pb.PinRequest(digests=[b""]),
        pb.PinRequest(spaces=[b"?"], digests=[b""], ttl_ms=[1.0]),
        pb.PinRequest(spaces=[DEEP_SPACE], digests=[b""], ttl_ms=[1.0]),
    ]
    async with aio.insecure_channel(f"127.0.0.1:{agent.control.port}") as channel:
        for method, data in [("ReadNode", b"\xff" * 20), *(("Pin", pin.SerializeToString()) for pin in pins)]:
            call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
            with pytest.raises(aio.AioRpcError) as refused:
                await call(data, timeout=5)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pins_of_more_spaces_than_a_connection_names_are_kept(
    control: NodeControl, config: dict[str, Any], connect: Connect, links: PeerLinks
) -> None:
    """A gateway pins for every shard of every model and revision, as long as the agent lives."""
    for number in range(MAX_SPACES + 1):
        strange = msgspec.structs.replace(SPACE, revision=str(number))
        assert [each.status for each in await control.pin([PinOrder(strange, digests([1]), 1000.0)])] == [Status.MISS]
    assert all(await asyncio.to_thread(put, connect(config), range(2)))
    assert [each.status for each in await control.pin([PinOrder(SPACE, digests([0, 1]), 60_000.0)])] == [Status.OK]
    assert len(links) == links.counters.links_opened <= 3


async def test_a_batch_of_which_one_pin_is_refused_holds_nothing(
    control: NodeControl, config: dict[str, Any], connect: Connect
) -> None:
    assert all(await asyncio.to_thread(put, connect(config), range(4)))
    orders = [PinOrder(SPACE, digests([0, 1]), 60_000.0), PinOrder(SPACE, b"no digest", 60_000.0)]
    with pytest.raises(NodeUnavailable, match="32 bytes"):
        await control.pin(orders)
    assert (await control.report()).numbers["pinned_bytes"] == 0
