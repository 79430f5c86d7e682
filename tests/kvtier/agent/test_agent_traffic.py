"""What came by each way and how long that took, as gateways are told it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_rig import PAGE_BYTES, SPACE, agent_here, config_of, digests, eventually, get, peer_of, put
from node_rig import node

from kvtier.agent.agent import monotonic_ms
from kvtier.agent.traffic import Traffic
from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient
from kvtier.wire import messages as wire
from kvtier.wire.bounds import MAX_COUNT, MAX_MS

thread = asyncio.to_thread
Connect = Callable[..., PageClient]


async def ask(channel: Channel, request: wire.Request) -> Any:
    return await thread(channel.ask, request, 5.0)


def test_moves_beside_each_other_are_busy_once() -> None:
    now_ms = 0.0
    traffic = Traffic(lambda: now_ms)
    with traffic.timing("L4") as one:
        now_ms = 10.0
        with traffic.timing("L4") as other:
            now_ms = 30.0
            other(500)
        one(100)
        now_ms = 40.0
    assert traffic.numbers() == {"moved_bytes:L4": 600, "moved_busy_ms:L4": 40.0}


def test_readers_that_tell_afterwards_are_busy_once_as_well() -> None:
    now_ms = 100.0
    traffic = Traffic(lambda: now_ms)
    traffic.told("L3", 500, 20.0)
    now_ms = 105.0
    traffic.told("L3", 500, 20.0)
    now_ms = 200.0
    traffic.told("L3", 500, 20.0)
    assert traffic.numbers() == {"moved_bytes:L3": 1500, "moved_busy_ms:L3": 45.0}


def test_time_that_brought_nothing_does_not_count() -> None:
    now_ms = 0.0
    traffic = Traffic(lambda: now_ms)
    with traffic.timing("L3:b"):
        now_ms = 1000.0
    traffic.told("L3", 0, 5.0)
    traffic.told("L3", 7, 2.0)
    numbers = traffic.numbers()
    assert (numbers["moved_bytes:L3:b"], numbers["moved_busy_ms:L3:b"]) == (0, 0.0)
    assert (numbers["moved_bytes:L3"], numbers["moved_busy_ms:L3"]) == (7, 2.0)


def test_ways_are_bounded() -> None:
    traffic = Traffic(lambda: 0.0)
    for number in range(1000):
        traffic.told(f"L3:{number}", 1, 1.0)
    assert len(traffic.numbers()) == 2 * 256


async def test_what_engines_read_is_told_by_them(tmp_path: Path, connect: Connect) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        client = connect(config_of(tmp_path))
        assert all(await thread(put, client, range(8)))
        assert all(await thread(get, client, range(8)))
        await eventually(lambda: agent.numbers().get("moved_bytes:L3") == 8 * PAGE_BYTES, "the copies were told")
        assert agent.numbers()["moved_busy_ms:L3"] > 0


async def test_what_came_from_another_node_is_counted_by_node(tmp_path: Path, connect: Connect) -> None:
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        assert all(await thread(put, far.client, range(8)))
        assert (await near.stage(range(8), peer_of(far.agent))).state == "ready"
        numbers = near.agent.numbers()
        assert numbers["moved_bytes:L3:far"] == 8 * PAGE_BYTES
        assert numbers["moved_busy_ms:L3:far"] > 0
        assert "moved_bytes:L3:near" not in far.agent.numbers()


async def test_what_came_from_ssd_is_counted(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, pool_mib=2, ssd={})
    async with agent_here(config) as agent:
        client = connect(config)
        for start in range(0, 100, 20):
            await thread(put, client, range(start, start + 20))
            await eventually(lambda least=start + 20: agent.store.counters.demoted >= least, "on SSD")  # type: ignore[misc]
        assert await thread(client.look, digests(range(10)), 10) == 10
        assert all(await thread(get, client, range(10)))
        numbers = agent.numbers()
        assert numbers["moved_bytes:L4"] == numbers["ssd_read_bytes"] >= 10 * PAGE_BYTES
        assert numbers["moved_busy_ms:L4"] > 0


async def test_no_more_is_believed_than_a_lease_covered_and_lasted(
    tmp_path: Path, connect: Connect, dial: Callable[[Path], Channel]
) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        assert all(await thread(put, connect(config_of(tmp_path)), range(2)))
        channel = await thread(dial, Path(agent.config.socket))
        space = (await ask(channel, wire.Attach(SPACE))).space
        before_ms = monotonic_ms()
        lease = (await ask(channel, wire.Acquire(space, digests(range(2)), 1000.0))).lease
        for number in (lease, lease, 0):
            await ask(channel, wire.Release(number, MAX_COUNT, MAX_MS))
        numbers = (await ask(channel, wire.AskStats())).numbers
        assert numbers["moved_bytes:L3"] == 2 * PAGE_BYTES
        assert 0 < numbers["moved_busy_ms:L3"] <= monotonic_ms() - before_ms


def test_counters_of_any_size_can_be_told() -> None:
    traffic = Traffic(lambda: 0.0)
    for _ in range(3):
        traffic.told("L3", 2**63, 1.0)
    told = wire.decode_reply(wire.encode(wire.Stats(traffic.numbers())))
    assert isinstance(told, wire.Stats)
    assert told.numbers["moved_bytes:L3"] == 3 * 2**63
