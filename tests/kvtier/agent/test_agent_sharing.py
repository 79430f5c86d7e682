"""Pages that a node gives to others: copies of hot ones, and a new home for what would be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_rig import config_of, digests, eventually, get, put
from node_rig import Connect, Node, node, thread

from engine_adapters.launch.ports import free_ports
from kvtier.agent.config import ConfigError, parse_config
from kvtier.page.status import Status
from kvtier.wire import messages as wire

SOON: dict[str, Any] = {"every_ms": 20, "deadline_ms": 5000}


@asynccontextmanager
async def two(folder: Path, connect: Connect, share: dict[str, Any], **near: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A node that shares, and its peer."""
    here, there = free_ports(2)
    given = config_of(folder, "far", listen={"port": there})
    giving = config_of(
        folder, "near", listen={"port": here}, share=SOON | share,
        peers=[{"node": "far", "host": "127.0.0.1", "port": there}], **near,
    )  # fmt: skip
    async with node(given, connect) as far, node(giving, connect) as giver:
        yield giver, far
        assert giver.agent.numbers()["share_crashes"] == 0


async def test_hot_pages_get_a_second_copy(tmp_path: Path, connect: Connect) -> None:
    share = {"replication": {"policy": "hot", "min_hits": 3}}
    async with two(tmp_path, connect, share) as (giver, far):
        await thread(put, giver.client, range(10))
        for _ in range(4):
            await thread(get, giver.client, range(4))
        await thread(get, giver.client, range(10))
        await eventually(lambda: giver.agent.numbers()["copied_pages"] == 4, "the hot ones are copied, once")
        assert await thread(far.client.look, digests(range(10))) == 4
        assert await thread(get, far.client, range(4)) == [True] * 4
        assert await thread(get, giver.client, range(10)) == [True] * 10
        await eventually(lambda: (giver.held, far.held) == (0, 0), "all leases end")


async def test_the_budget_of_a_round_is_kept(tmp_path: Path, connect: Connect) -> None:
    share = {"replication": {"policy": "hot", "min_hits": 1, "budget_bytes": "64 KiB"}, "every_ms": 100_000}
    async with two(tmp_path, connect, share) as (giver, _):
        await thread(put, giver.client, range(10))
        await thread(get, giver.client, range(10))
        assert giver.agent.sharer is not None
        await giver.agent.sharer.round()
        assert giver.agent.numbers()["copied_pages"] == 2


@pytest.mark.parametrize("policy", ["most_free", "spread"])
async def test_what_would_be_lost_moves_to_where_there_is_room(tmp_path: Path, connect: Connect, policy: str) -> None:
    share = {"placement": {"policy": policy}, "max_moved_share": 0.2, "every_ms": 100_000}
    async with two(tmp_path, connect, share, pool_mib=2, watermark=0.8) as (giver, far):
        await thread(put, giver.client, range(60))
        assert giver.agent.sharer is not None
        for _ in range(3):
            await giver.agent.sharer.round()
        assert giver.agent.numbers()["placed_pages"] > 5
        here = await thread(get, giver.client, range(60))
        there = await thread(get, far.client, range(60))
        assert not any(both for both in map(all, zip(here, there, strict=True)))
        acquired = await giver.ask(wire.Acquire(giver.space, digests(range(60)), 1000))
        moved = [index for index, status in enumerate(acquired.statuses) if status == Status.MOVED]
        assert moved
        assert all(there[index] for index in moved)
        assert set(acquired.moved.values()) == {"far"}


async def test_what_is_on_ssd_stays(tmp_path: Path, connect: Connect) -> None:
    share = {"placement": {"policy": "most_free"}, "every_ms": 100_000}
    async with two(tmp_path, connect, share, pool_mib=2, watermark=0.8, ssd={}) as (giver, _):
        await thread(put, giver.client, range(50))
        await eventually(lambda: giver.agent.store.counters.demoted == 50, "on SSD")
        assert giver.agent.sharer is not None
        await giver.agent.sharer.round()
        assert giver.agent.numbers()["placed_pages"] == 0


async def test_a_peer_that_is_away_costs_nothing(tmp_path: Path, connect: Connect) -> None:
    (here,) = free_ports(1)
    config = config_of(
        tmp_path, "near", pool_mib=2, watermark=0.8, listen={"port": here}, share=SOON | {"placement": {"policy": "spread"}},
        peers=[{"node": "far", "host": "127.0.0.1", "port": 1}],
    )  # fmt: skip
    async with node(config, connect) as alone:
        await thread(put, alone.client, range(50))
        assert alone.agent.sharer is not None
        await alone.agent.sharer.round()
        numbers = alone.agent.numbers()
        assert (numbers["placed_pages"], numbers["share_crashes"], alone.held) == (0, 0, 0)


def test_sharing_needs_an_address_and_somebody(tmp_path: Path) -> None:
    config = config_of(tmp_path, share={"placement": {"policy": "spread"}})
    with pytest.raises(ConfigError, match="share needs peers"):
        parse_config(config)
