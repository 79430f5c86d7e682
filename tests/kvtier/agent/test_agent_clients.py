"""Engines' clients at a real agent over a real socket: bytes through shared memory, leases that end with their holder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agent_rig import (
    PAGE_BYTES,
    PATIENT,
    SPACE,
    EngineMemory,
    agent_here,
    config_of,
    content,
    digest,
    digests,
    eventually,
    get,
    put,
)

from kvtier.agent.agent import Agent
from kvtier.client.channel import AgentRefused, Channel
from kvtier.client.engine_pages import EnginePages
from kvtier.client.page_client import PageClient
from kvtier.page.key import page_key
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.wire import messages as wire

thread = asyncio.to_thread
Connect = Callable[..., PageClient]
Dial = Callable[[Path], Channel]


async def connected(agent: Agent, dial: Dial) -> tuple[Channel, int]:
    """A bare connection with SPACE attached."""
    channel = await thread(dial, Path(agent.config.socket))
    attached = await thread(channel.ask, wire.Attach(SPACE), 5.0)
    assert isinstance(attached, wire.Attached)
    return channel, attached.space


async def ask(channel: Channel, request: wire.Request) -> Any:
    return await thread(channel.ask, request, 5.0)


async def test_what_one_engine_put_another_gets(tmp_path: Path, connect: Connect) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        first, second = connect(config), connect(config)
        numbers = range(40)
        assert await thread(put, first, numbers) == [True] * 40
        assert await thread(second.look, digests([*numbers, 99])) == 40
        assert await thread(get, second, numbers) == [True] * 40
        assert await thread(get, second, [3, 77, 5]) == [True, False, True]
        await eventually(lambda: agent.store.running_leases == 0, "they end, unasked for an answer")


async def test_a_second_put_moves_no_bytes(tmp_path: Path, connect: Connect) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        first, second = connect(config), connect(config)
        await thread(put, first, range(10))
        assert await thread(put, second, range(10)) == [True] * 10
        assert (second.counters.pages_there, second.counters.pages_put) == (10, 0)
        assert agent.store.counters.stored == 10
        assert agent.store.tiering.dram.slabs.used_bytes == 10 * PAGE_BYTES


async def test_models_do_not_meet(tmp_path: Path, connect: Connect) -> None:
    async with agent_here(config := config_of(tmp_path)):
        await thread(put, connect(config), range(4))
        other = connect(config, PageSpace("another", "bfloat16", "page_first", 16))
        assert await thread(other.look, digests(range(4))) == 0
        assert await thread(get, other, range(4)) == [False] * 4


async def test_pages_of_another_size_in_the_same_space_are_refused(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with agent_here(config := config_of(tmp_path)):
        client = connect(config)
        await thread(put, client, [1])
        memory = EngineMemory([1])
        assert await thread(client.get, digests([1]), EnginePages.striped(memory.pieces(0)[:1], 1)) == [False]
        assert "are stored in this space" in caplog.text
        assert await thread(get, client, [1]) == [True]


async def test_a_full_pool_refuses_politely_and_serves_on(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path, pool_mib=2, watermark=1)) as agent:
        client = connect(config)
        await thread(put, client, range(64))
        slabs = agent.store.tiering.dram.slabs
        assert slabs.used_bytes == slabs.capacity_bytes
        channel, space = await connected(agent, dial)
        held = await ask(channel, wire.Acquire(space, digests(range(64)), 30_000))
        assert set(held.statuses) == {Status.OK}
        assert await thread(put, client, range(100, 104)) == [False] * 4
        assert await thread(get, client, range(8)) == [True] * 8
        await ask(channel, wire.Release(held.lease))
        assert await thread(put, client, range(100, 104)) == [True] * 4


async def test_a_client_that_goes_gives_back_its_leases_and_writes(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), range(4))
        channel, space = await connected(agent, dial)
        await ask(channel, wire.Acquire(space, digests(range(4)), 30_000))
        await ask(channel, wire.Reserve(space, digests([50, 51]), PAGE_BYTES))
        assert (agent.store.running_leases, len(agent.store.tiering.writes)) == (1, 2)
        channel.close()
        await eventually(lambda: not agent.store.running_leases and not len(agent.store.tiering.writes), "given back")
        assert agent.store.tiering.dram.slabs.used_bytes == 4 * PAGE_BYTES


async def test_leases_belong_to_their_connection(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), range(2))
        mine, space = await connected(agent, dial)
        other, other_space = await connected(agent, dial)
        acquired = await ask(mine, wire.Acquire(space, digests([0, 1]), 30_000))
        assert await ask(other, wire.Renew(acquired.lease, 1000)) == wire.Done(Status.MISS)
        await ask(other, wire.Release(acquired.lease))
        assert await ask(mine, wire.Renew(acquired.lease, 1000)) == wire.Done(Status.OK)
        reserved = await ask(mine, wire.Reserve(space, digests([9]), PAGE_BYTES))
        assert (await ask(other, wire.Commit(reserved.write, b"c" * 16))).status is Status.MISS
        assert (await ask(other, wire.Reserve(other_space, digests([9]), PAGE_BYTES))).statuses == bytes([Status.WRITING])


@pytest.mark.slow
async def test_flipped_bits_in_dram_are_never_served(tmp_path: Path, connect: Connect) -> None:
    """Each page is hit by one flip, and each get finds it: 1,000 pages, 1,000 flips."""
    async with agent_here(config := config_of(tmp_path)) as agent:
        client = connect(config)
        rng = Random(2)
        space = agent.store.meet(SPACE)
        for start in range(0, 1000, 100):
            numbers = range(start, start + 100)
            assert all(await thread(put, client, numbers))
            for number in numbers:
                page = agent.store.catalog.get(page_key(space, digest(number)))
                assert page is not None
                agent.pool.view(page.offset, page.length)[rng.randrange(page.length)] ^= 1 << rng.randrange(8)
            assert await thread(get, client, numbers) == [False] * 100
            assert await thread(client.look, digests(numbers)) == 0
        assert client.counters.pages_corrupt == agent.store.counters.corrupt_dram == 1000
        assert agent.store.tiering.dram.slabs.used_bytes == 0


async def test_corrupt_pages_are_reported_together(tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = Channel.send

    def counted(self: Channel, requests: Sequence[wire.Request], deadline_s: float) -> Sequence[int]:
        sent.append(sum(isinstance(request, wire.Report) for request in requests))
        return send(self, requests, deadline_s)

    monkeypatch.setattr(Channel, "send", counted)
    async with agent_here(config := config_of(tmp_path)) as agent:
        client = connect(config)
        space = agent.store.meet(SPACE)
        assert all(await thread(put, client, range(70)))
        for number in range(1, 70):
            page = agent.store.catalog.get(page_key(space, digest(number)))
            assert page is not None
            agent.pool.view(page.offset, page.length)[number] ^= 1
        assert await thread(get, client, range(70)) == [True, *[False] * 69]
        assert list(filter(None, sent)) == [64, 5]
        assert client.counters.pages_corrupt == agent.store.counters.corrupt_dram == 69


async def test_a_client_with_broken_memory_cannot_talk_a_page_away(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), [1])
        channel, space = await connected(agent, dial)
        acquired = await ask(channel, wire.Acquire(space, digests([1]), 1000))
        assert await ask(channel, wire.Report(space, digest(1), acquired.generations[0])) == wire.Done(Status.OK)
        assert await thread(get, connect(config), [1]) == [True]


@pytest.mark.parametrize("length", [0, 7, 31, 33])
async def test_a_digest_of_another_length_is_refused(tmp_path: Path, connect: Connect, dial: Dial, length: int) -> None:
    """And the connection stays."""
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), [1])
        channel, space = await connected(agent, dial)
        with pytest.raises(AgentRefused, match="digest"):
            await ask(channel, wire.Report(space, bytes(length), 1))
        assert await ask(channel, wire.Look(space, digests([1]))) == wire.Looked(1, 1)


async def test_a_cut_hides_the_rest_from_one_worker_for_a_while(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), range(8))
        cut_off, free = connect(config, worker="p0"), connect(config, worker="p1")
        channel, _ = await connected(agent, dial)
        await ask(channel, wire.SetCut("p0", digest(5), 60_000))
        assert [await thread(each.look, digests(range(8))) for each in (cut_off, free)] == [5, 8]
        await ask(channel, wire.SetCut("p0", digest(5), 0))
        assert await thread(cut_off.look, digests(range(8))) == 8


async def test_pins_and_tags_over_the_wire(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path)) as agent:
        await thread(put, connect(config), range(4))
        channel, space = await connected(agent, dial)
        pinned = await ask(channel, wire.PinPages(space, digests([0, 1]), 5000))
        assert (pinned.status, pinned.pages, agent.store.pinned_bytes) == (Status.OK, 2, 2 * PAGE_BYTES)
        assert (await ask(channel, wire.PinPages(space, digests([0, 77]), 5000))).status is Status.MISS
        assert await ask(channel, wire.Unpin(pinned.pin)) == wire.Done(Status.OK)
        assert await ask(channel, wire.Unpin(pinned.pin)) == wire.Done(Status.MISS)
        await ask(channel, wire.TagPages(space, digests([0]), PageKind.SYSTEM_PROMPT))
        assert (await ask(channel, wire.Acquire(space, digests([0, 1]), 10))).kinds == bytes([3, 2])


@pytest.mark.parametrize(
    "nonsense",
    [
        wire.Look(7, digests([1])),
        wire.Look(0, b"short"),
        wire.Reserve(0, digests([1]), 1 << 30),
        wire.Reserve(0, digests([1]), 0),
        wire.Commit(1, b"c" * 17),
        wire.ReplayEvents(b"?" * 16, 0),
        wire.Reserve(0, digests([1, 2]), 4096, 2**63 - 1),
        wire.Acquire(0, digests([1]), nan),
        wire.PinPages(0, digests([1]), inf),
        wire.Release(0, 2**63 - 1, 1.0),
    ],
)
async def test_nonsense_is_refused_and_the_connection_goes_on(tmp_path: Path, dial: Dial, nonsense: wire.Request) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        channel, space = await connected(agent, dial)
        with pytest.raises(AgentRefused):
            await ask(channel, nonsense)
        assert await ask(channel, wire.Look(space, digests([1]))) == wire.Looked(0, 0)


async def test_stats_name_everything(tmp_path: Path, connect: Connect, dial: Dial) -> None:
    async with agent_here(config := config_of(tmp_path, ssd={})) as agent:
        await thread(put, connect(config), range(4))
        channel, _ = await connected(agent, dial)
        numbers = (await ask(channel, wire.AskStats())).numbers
        assert (numbers["stored"], numbers["dram_used_bytes"]) == (4, 4 * PAGE_BYTES)
        assert {"evicted", "corrupt_dram", "received_bytes", "sent_bytes", "ssd_written_bytes", "crashes"} <= set(numbers)


async def test_clear_forgets_one_space(tmp_path: Path, connect: Connect) -> None:
    async with agent_here(config := config_of(tmp_path)):
        one, other = connect(config), connect(config, PageSpace("another", "bfloat16", "page_first", 16))
        await thread(put, one, range(4))
        await thread(put, other, range(4))
        assert await thread(one.clear)
        assert [await thread(each.look, digests(range(4))) for each in (one, other)] == [0, 4]


async def test_a_dead_agent_means_misses_at_once(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path)
    async with agent_here(config):
        client = connect(config, settings=PATIENT, clock_s=(clock := Clock()))
        assert await thread(put, client, [1]) == [True]
    assert await thread(get, client, [1]) == [False]
    assert (client.look(digests([1])), put(client, [2])) == (0, [False])
    failures = client.counters.failures
    async with agent_here(config, epoch=2):
        assert await thread(client.look, digests([1])) == 0  # left alone for retry_s
        clock.now_s += 1
        assert await thread(put, client, [1]) == [True]  # a new life, a new memory
        assert await thread(get, client, [1]) == [True]
    assert client.counters.failures == failures + 1


async def test_a_restarted_agent_is_met_at_once(tmp_path: Path, connect: Connect) -> None:
    """An engine that was idle meanwhile loses nothing."""
    config = config_of(tmp_path)
    async with agent_here(config):
        client = connect(config, settings=PATIENT)
        assert await thread(put, client, [1]) == [True]
    async with agent_here(config, epoch=2):
        assert await thread(put, client, [2]) == [True]
        assert await thread(get, client, [1, 2]) == [False, True]
    assert client.counters.failures == 0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_content_differs() -> None:
    assert content(1) != content(2)
