"""An agent with an SSD: pages that leave DRAM come back, also in another life, and bad bytes on the device are not served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agent_rig import SPACE, agent_here, config_of, digest, digests, eventually, get, put

from costmodel.values import Tier, WorkerKey
from kvtier.agent.agent import Agent
from kvtier.agent.event_wire import to_wire
from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient
from kvtier.control.follower import decode_batch
from kvtier.index.memory import BlockIndex
from kvtier.page.key import page_key
from kvtier.page.space import space_digest
from kvtier.store.journal import event_id
from kvtier.wire import messages as wire

thread = asyncio.to_thread
Connect = Callable[..., PageClient]


async def written(agent: Agent, count: int) -> None:
    """Until so many pages are on SSD."""
    await eventually(lambda: agent.store.counters.demoted >= count, f"{count} pages on SSD")


async def test_pages_that_left_dram_come_back_within_one_get(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, pool_mib=2, ssd={})
    async with agent_here(config) as agent:
        client = connect(config)
        for start in range(0, 100, 20):
            await thread(put, client, range(start, start + 20))
            await written(agent, start + 20)
        assert await thread(client.look, digests(range(100))) == 0  # the first pages left
        assert await thread(client.look, digests(range(10)), 10) == 10  # but can be had
        assert await thread(get, client, range(10)) == [True] * 10
        assert agent.store.counters.promoted >= 10


async def test_another_life_finds_everything(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    async with agent_here(config) as agent:
        await thread(put, connect(config), range(50))
        await written(agent, 50)
    async with agent_here(config, epoch=2) as agent:
        assert agent.store.counters.recovered == 50
        client = connect(config)
        assert await thread(client.look, digests(range(50))) == 0
        assert await thread(get, client, range(50)) == [True] * 50
        assert await thread(client.look, digests(range(50))) == 50


async def test_a_life_with_smaller_slabs_leaves_out_what_does_not_fit(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, ssd={})
    async with agent_here(config) as agent:
        await thread(put, connect(config), range(8))
        await written(agent, 8)
    config["dram"]["slab_bytes"] = "16 KiB"
    async with agent_here(config, epoch=2) as agent:
        assert agent.store.counters.recovered_too_large == 8
        assert await thread(connect(config).look, digests(range(8)), 8) == 0
        assert caplog.text.count("raise dram.slab_bytes") == 1
        assert len(agent.store.tiering.dram.allocate(16 << 10, 512)) == 512


async def test_a_stop_waits_for_pages_on_their_way(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    async with agent_here(config):
        await thread(put, connect(config), range(100))
    async with agent_here(config, epoch=2) as agent:
        assert agent.store.counters.recovered == 100


async def test_flipped_bits_on_ssd_are_never_served(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    async with agent_here(config) as agent:
        await thread(put, connect(config), range(60))
        await written(agent, 60)
    rng = Random(3)
    (path,) = (tmp_path / "a-ssd").glob("*.lbkv")
    data = bytearray(path.read_bytes())
    for _ in range(30):  # behind the headers: a page is hit more often than not
        data[rng.randrange(200_000, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    async with agent_here(config, epoch=2) as agent:
        client = connect(config)
        got = await thread(get, client, range(60))  # what is got is right: `get` looks
        counters = agent.store.counters
        assert 0 < counters.corrupt_ssd <= 30
        assert sum(got) == counters.recovered - counters.corrupt_ssd
        assert await thread(get, client, range(60)) == got  # and what is lost stays lost


async def test_what_the_index_hears_is_what_is_there(tmp_path: Path, connect: Connect, dial: Callable[[Path], Channel]) -> None:
    config = config_of(tmp_path, pool_mib=2, ssd={})
    async with agent_here(config, epoch=7) as agent:
        for start in (0, 40, 80):
            await thread(put, connect(config), range(start, start + 40))
            await written(agent, start + 40)
        channel = await thread(dial, Path(config["socket"]))
        spaces: Any = await thread(channel.ask, wire.AskSpaces(), 5.0)
        assert spaces == wire.Spaces(7, {space_digest(SPACE): SPACE})
        journals = agent.store.journals
        events: Any = None
        async with asyncio.timeout(10):  # pages may leave DRAM while the answer is on its way
            while events != to_wire(7, journals.whole_spaces()[space_digest(SPACE)].since(0)):
                events = await thread(channel.ask, wire.ReplayEvents(space_digest(SPACE), 0), 5.0)
        index, node = BlockIndex(), WorkerKey("a")
        for batch in map(decode_batch, events.batches):
            for event in batch.events:
                index.apply(node, event, 0.0)
        space = agent.store.meet(SPACE)
        for number in range(120):
            page = agent.store.catalog.get(page_key(space, digest(number)))
            match = index.match([event_id(digest(number))], 0.0).get(node)
            assert page is not None
            assert match is not None
            assert match.runs[0].tier is (Tier.L3 if page.in_dram else Tier.L4)
