"""Pages between two agents: fetched when staged, checked on arrival, held, bounded, and never half there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_rig import PAGE_BYTES, SPACE, config_of, digest, digests, eventually, get, peer_of, put
from node_rig import Connect, Node, node, thread

from kvtier.page.key import page_key
from kvtier.page.status import Status
from kvtier.wire import messages as wire


@asynccontextmanager
async def two(folder: Path, connect: Connect, **near: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A node that has pages, and one that wants them."""
    async with node(config_of(folder, "far"), connect) as far, node(config_of(folder, "near", **near), connect) as there:
        yield far, there


async def test_a_staged_prompt_is_there_when_it_is_asked_for(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect) as (far, near):
        await thread(put, far.client, range(20))
        assert await thread(near.client.look, digests(range(20))) == 0
        staged = await near.stage(range(20), peer_of(far.agent))
        assert (staged.state, staged.leading, staged.fetched_bytes) == ("ready", 20, 20 * PAGE_BYTES)
        assert await thread(get, near.client, range(20)) == [True] * 20
        assert near.agent.links.counters.links_opened == 1
        await eventually(lambda: far.agent.store.running_leases == 0, "leases are given back")


async def test_pages_on_the_peers_ssd_come_too(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, "far", pool_mib=2, ssd={})
    async with node(config, connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        for start in range(0, 80, 10):
            await thread(put, far.client, range(start, start + 10))
            await eventually(lambda: far.agent.store.counters.demoted >= start + 10, "on SSD")  # noqa: B023
        staged = await near.stage(range(10), peer_of(far.agent))
        assert (staged.state, staged.leading) == ("ready", 10)
        assert await thread(get, near.client, range(10)) == [True] * 10


async def test_a_second_source_gives_what_the_first_has_not(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect) as (far, near), node(config_of(tmp_path, "third"), connect) as third:
        await thread(put, far.client, range(5))
        await thread(put, third.client, range(10))
        staged = await near.stage(range(12), peer_of(far.agent), peer_of(third.agent))
        assert (staged.state, staged.leading) == ("partial", 10)
        assert third.agent.store.counters.dram_hits == 5


async def test_a_budget_takes_the_leading_pages(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect) as (far, near):
        await thread(put, far.client, range(10))
        staged = await near.stage(range(10), peer_of(far.agent), max_bytes=4 * PAGE_BYTES)
        assert (staged.state, staged.leading, staged.fetched_bytes) == ("full", 4, 4 * PAGE_BYTES)


async def test_what_was_staged_is_held_until_its_time_or_a_cancel(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect, pool_mib=2, watermark=1) as (far, near):
        await thread(put, far.client, range(12))
        staged = await near.stage(range(12), peer_of(far.agent), hold_ms=60_000)
        assert staged.held == near.held == 12
        await thread(put, near.client, range(100, 164))  # as many as the pool has
        assert await thread(near.client.look, digests(range(12))) == 12
        await near.ask(wire.CancelStage(staged.stage))
        assert near.held == 0
        brief = await near.stage(range(12), hold_ms=1)
        assert brief.state == "ready"
        await eventually(lambda: near.held == 0, "let go")


async def test_stages_hold_no_more_than_their_share(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect, pool_mib=2, stages={"max_held_share": 0.25}) as (_, near):
        await thread(put, near.client, range(40))
        staged = await near.stage(range(40), hold_ms=60_000)
        assert (staged.state, staged.leading, staged.held) == ("ready", 40, 16)
        assert (await near.stage(range(40), hold_ms=60_000)).held == 0


async def test_a_peer_whose_page_rots_sends_nothing_wrong(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect) as (far, near):
        await thread(put, far.client, range(6))
        page = far.agent.store.catalog.get(page_key(far.agent.store.meet(SPACE), digest(3)))
        assert page is not None
        far.agent.pool.view(page.offset, page.length)[100] ^= 4
        staged = await near.stage(range(6), peer_of(far.agent))
        assert (staged.state, staged.leading) == ("partial", 3)
        assert near.agent.fetcher.counters.corrupt_received == 1
        assert await thread(get, near.client, range(6)) == [True, True, True, False, True, True]
        await eventually(lambda: far.agent.store.counters.corrupt_dram == 1, "it was told, looked, and agreed")
        assert len(near.agent.store.tiering.writes) == 0


async def test_an_absent_peer_is_no_miss_and_costs_no_claims(tmp_path: Path, connect: Connect) -> None:
    async with node(config_of(tmp_path, "near", links={"backoff_ms": 3_600_000}), connect) as near:
        nobody = wire.Peer("far", "127.0.0.1", 1)
        for failures in (1, 2):
            staged = await near.stage(range(4), nobody)
            assert (staged.state, staged.leading) == ("partial", 0)
            assert near.agent.fetcher.counters.fetches_failed == failures
        assert near.agent.links.counters.links_failed == 1  # the second time it was left alone
        assert len(near.agent.store.tiering.writes) == 0


async def test_another_node_at_the_address_is_refused(tmp_path: Path, connect: Connect) -> None:
    async with two(tmp_path, connect) as (far, near):
        await thread(put, far.client, range(4))
        staged = await near.stage(range(4), wire.Peer("someone-else", "127.0.0.1", far.agent.port))
        assert (staged.state, staged.leading, near.agent.links.counters.links_failed) == ("partial", 0, 1)


async def test_a_peer_that_restarted_is_met_again(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, "far", ssd={})
    async with node(config_of(tmp_path, "near"), connect) as near:
        async with node(config, connect) as far:
            await thread(put, far.client, range(8))
            assert (await near.stage(range(4), peer_of(far.agent))).state == "ready"
        async with node(config, connect, epoch=2) as far:
            assert (await near.stage(range(8), peer_of(far.agent))).state == "ready"
        assert await thread(get, near.client, range(8)) == [True] * 8


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_stage_from_a_silent_peer_ends(tmp_path: Path, connect: Connect, cancelled: bool) -> None:
    """It takes the connection and says nothing."""
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    async with node(config_of(tmp_path, "near", links={"connect_ms": 60_000}), connect) as near:
        request = wire.Stage(near.space, digests(range(4)), [wire.Peer("far", "127.0.0.1", port)], 60_000 if cancelled else 50)
        begun = await near.ask(request)
        if cancelled:
            await near.ask(wire.CancelStage(begun.stage))
        await eventually(lambda: near.agent.stager.get(begun.stage).ended, "it ends")  # type: ignore[union-attr]
        staging = await near.ask(wire.AskStage(begun.stage))
        assert staging.state == ("cancelled" if cancelled else "expired")
        assert await near.ask(wire.AskStage(begun.stage + 1)) == wire.Done(Status.MISS)
    silent.close()


async def test_more_stages_than_may_wait_are_refused(tmp_path: Path, connect: Connect) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    peer = wire.Peer("far", "127.0.0.1", silent.getsockname()[1])
    config = config_of(tmp_path, "near", stages={"max_running": 1, "max_queued": 1}, links={"connect_ms": 60_000})
    async with node(config, connect) as near:
        request = wire.Stage(near.space, digests(range(4)), [peer], 60_000)
        states = [(await near.ask(request)).state for _ in range(2)]
        assert states == ["queued", "queued"]
        with pytest.raises(Exception, match="ask again later"):
            await near.ask(request)
    silent.close()


async def test_of_ended_stages_only_the_last_are_remembered(tmp_path: Path, connect: Connect) -> None:
    async with node(config_of(tmp_path, "near", tick_ms=60_000), connect) as near:
        stager = near.agent.stager
        jobs = []
        for _ in range(6):
            jobs += [stager.stage(SPACE, digests(range(1)), [], 5000, 0, 0) for _ in range(200)]
            await eventually(lambda: all(job.ended for job in jobs), "they end")  # noqa: B023  called at once
        stager.sweep()
        assert [stager.get(job.id) is job for job in jobs] == [False] * 176 + [True] * 1024
