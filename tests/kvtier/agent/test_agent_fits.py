"""What is larger than the pool: it is cut to what may be held, every page is read once, and the rest stays where it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent_rig import PAGE_BYTES, config_of, digests, eventually, get, peer_of, put
from node_rig import Connect, Node, node, thread

from kvtier.wire import messages as wire

PAGES = 100  # the pool has 64
HELD = 19  # 0.3 of it


@asynccontextmanager
async def sunk(folder: Path, connect: Connect) -> AsyncIterator[Node]:
    """A node whose SSD has all of a prompt, and whose DRAM only the last pages."""
    async with node(config_of(folder, "near", pool_mib=2, ssd={}), connect) as near:
        for start in range(0, PAGES, 20):
            await thread(put, near.client, range(start, start + 20))
            await eventually(lambda: near.agent.store.counters.demoted >= start + 20, "on SSD")  # noqa: B023
        yield near


async def test_a_stage_from_ssd_takes_the_leading_pages_that_fit(tmp_path: Path, connect: Connect) -> None:
    async with sunk(tmp_path, connect) as near:
        staged = await near.stage(range(PAGES), hold_ms=60_000)
        assert (staged.state, staged.leading, staged.held) == ("full", HELD, HELD)
        assert near.agent.store.counters.promoted == HELD
        assert await thread(get, near.client, range(HELD)) == [True] * HELD


async def test_stages_side_by_side_share_what_may_be_held(tmp_path: Path, connect: Connect) -> None:
    async with sunk(tmp_path, connect) as near:
        begun = [await near.begin(range(start, start + 10), hold_ms=60_000) for start in (0, 10, 20, 30)]
        ended = [await near.ended(stage) for stage in begun]
        assert {staged.state for staged in ended} == {"ready", "full"}
        assert sum(staged.held for staged in ended) == near.agent.store.counters.promoted == HELD


async def test_what_is_pinned_leaves_its_room_to_other_stages(tmp_path: Path, connect: Connect) -> None:
    async with sunk(tmp_path, connect) as near:
        assert (await near.stage(range(HELD), hold_ms=60_000)).state == "ready"
        assert (await near.stage(range(20, 30), hold_ms=60_000)).state == "full"
        await near.ask(wire.PinPages(near.space, digests(range(HELD)), 60_000))
        assert (await near.stage(range(20, 30), hold_ms=60_000)).state == "ready"


@pytest.mark.parametrize("ssd", [None, {}])
async def test_a_stage_from_a_peer_takes_the_leading_pages_that_fit(
    tmp_path: Path, connect: Connect, ssd: dict[str, object] | None
) -> None:
    config = config_of(tmp_path, "near", pool_mib=2, ssd=ssd)
    async with node(config_of(tmp_path, "far"), connect) as far, node(config, connect) as near:
        await thread(put, far.client, range(PAGES))
        staged = await near.stage(range(PAGES), peer_of(far.agent), hold_ms=60_000)
        assert (staged.state, staged.leading, staged.fetched_bytes) == ("full", HELD, HELD * PAGE_BYTES)
        assert far.agent.store.counters.dram_hits == PAGES  # which were asked for once
        none = await near.stage(range(HELD, PAGES), peer_of(far.agent))
        assert (none.state, none.leading, none.fetched_bytes) == ("full", 0, 0)
        assert near.agent.store.counters.promoted == near.agent.store.counters.evicted == 0


async def test_a_read_of_more_than_the_pool_reads_each_page_once(tmp_path: Path, connect: Connect) -> None:
    async with sunk(tmp_path, connect) as near:
        async with asyncio.timeout(10):
            acquired = await near.ask(wire.Acquire(near.space, digests(range(PAGES)), 1000, wait_ms=60_000))
        assert isinstance(acquired, wire.Acquired)
        assert near.agent.store.counters.promoted <= PAGES
        await near.ask(wire.Release(acquired.lease))
