"""An index that follows agents: what they hold is found, and their deaths, restarts and long absences leave nothing false."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_rig import DEADLINE_S, PAGE_BYTES, SPACE, agent_here, agent_process, config_of, digest, eventually, peer_of, put

from costmodel.values import Tier, WorkerKey
from kvtier.client.page_client import PageClient
from kvtier.control.follower import AgentFollower, FollowSettings
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import BlockRun
from kvtier.page.space import PageSpace
from kvtier.store.journal import event_id
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import AskStats, Peer, Stats

READER = WorkerKey("p0")
SETTINGS = FollowSettings(poll_ms=5, spaces_ms=20, retry_ms=10)
Connect = Callable[..., PageClient]


def clock_ms() -> float:
    return time.monotonic() * 1000


def runs(index: BlockIndex, numbers: Sequence[int]) -> tuple[BlockRun, ...]:
    match = index.match([event_id(digest(number)) for number in numbers], clock_ms()).get(READER)
    return match.runs if match else ()


@asynccontextmanager
async def following(peer: Peer, index: BlockIndex) -> AsyncIterator[AgentFollower]:
    def choose(space: PageSpace) -> Sequence[BlockIndex]:
        return [index] if space.model == SPACE.model else []

    links = PeerLinks(LinkSettings(backoff_ms=20))
    follower = AgentFollower(peer, links, choose, clock_ms, SETTINGS)
    running = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await links.close()


async def copied_to_ssd(peer: Peer, wanted_bytes: int) -> None:
    links = PeerLinks(LinkSettings())
    link = await links.to(peer)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            stats = await link.call(AskStats(), DEADLINE_S)
            assert isinstance(stats, Stats)
            if stats.numbers["ssd_live_bytes"] >= wanted_bytes:
                break
    await links.close()


@pytest.fixture
def index() -> BlockIndex:
    index = BlockIndex(max_entries=4096, max_sources=8)
    index.attach(READER, "b")
    return index


async def test_what_an_agent_holds_is_found_and_what_it_drops_is_not(
    tmp_path: Path, connect: Connect, index: BlockIndex
) -> None:
    config = config_of(tmp_path, pool_mib=2)
    async with agent_here(config) as agent, following(peer_of(agent), index) as follower:
        client = connect(config)
        assert all(await asyncio.to_thread(put, client, range(4)))
        await eventually(lambda: runs(index, range(4)) == (BlockRun(0, 4, Tier.L3, "a"),), "four pages found")
        await asyncio.to_thread(put, client, range(100, 180))  # more than the pool holds
        await eventually(lambda: not runs(index, [0]), "the first page evicted")
        await eventually(lambda: follower.status.pages == {Tier.L3: agent.numbers()["pages"]}, "all pages counted")
        assert follower.status.live
        assert follower.status.gaps == 0
    assert not index.sources


async def test_spaces_of_other_models_are_left_alone(tmp_path: Path, connect: Connect, index: BlockIndex) -> None:
    config = config_of(tmp_path)
    async with agent_here(config) as agent, following(peer_of(agent), index) as follower:
        other = connect(config, PageSpace("another", "bfloat16", "page_first", 16))
        assert all(await asyncio.to_thread(put, other, range(4)))
        client = connect(config)
        assert all(await asyncio.to_thread(put, client, range(4, 6)))
        await eventually(lambda: runs(index, [4, 5]), "two pages found")
        assert not runs(index, [0])
        assert follower.status.spaces == 1


@pytest.mark.slow
async def test_a_killed_agent_is_not_believed_and_a_restarted_one_begins_anew(
    tmp_path: Path, connect: Connect, index: BlockIndex
) -> None:
    config: dict[str, Any] = config_of(tmp_path, ssd={})
    with agent_process(config, tmp_path) as agent:
        port = agent.port
        config["listen"]["port"] = port
        async with following(agent.peer, index) as follower:
            client = connect(config)
            assert all(await asyncio.to_thread(put, client, range(8)))
            await eventually(lambda: len(runs(index, range(8))) == 1, "eight pages found")
            await copied_to_ssd(agent.peer, 8 * PAGE_BYTES)
            await asyncio.to_thread(agent.kill)
            await eventually(lambda: not runs(index, [0]), "the dead agent is not believed")
            with agent_process(config, tmp_path):
                await eventually(lambda: runs(index, [0]), "what survived on SSD is found again")
                assert {run.tier for run in runs(index, range(8))} == {Tier.L4}
                assert follower.status.restarts == 1
