"""What must hold when wires, clocks and names misbehave: no wrong page, no claim or lease left behind, and life goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_rig import PAGE_BYTES, SPACE, config_of, digests, eventually, get, peer_of, put
from chaos_link import HalfOpen, HeldUp, Lost, Mischief, Spoilt, Swapped, Twice, chaos
from node_rig import Connect, Node, node, thread

from kvtier.agent import agent as agent_module
from kvtier.page.status import Status
from kvtier.wire import messages as wire

STALL: dict[str, Any] = {"links": {"stall_ms": 100, "backoff_ms": 50}}


@asynccontextmanager
async def apart(folder: Path, connect: Connect, mischief: Mischief) -> AsyncIterator[tuple[Node, Node, wire.Peer]]:
    """A node that has 24 pages, one that wants them, and the bad wire between the two."""
    async with node(config_of(folder, "far"), connect) as far, node(config_of(folder, "near", **STALL), connect) as near:
        await thread(put, far.client, range(24))
        async with chaos(peer_of(far.agent), mischief) as wired:
            yield far, near, wired
            await eventually(lambda: not len(near.agent.store.tiering.writes), "no claim is left")
        await eventually(lambda: not far.agent.store.running_leases, "no lease is left")
        await eventually(lambda: near.held == far.held == 0, "nothing is held")


async def stages(near: Node, peer: wire.Peer, deadline_ms: float = 5000) -> list[wire.Staging]:
    """Three at once: several calls are under way on the one connection."""
    begun = [await near.begin(range(start, start + 8), peer, deadline_ms=deadline_ms) for start in (0, 8, 16)]
    return [await near.ended(stage) for stage in begun]


@pytest.mark.parametrize("mischief", [Twice(), Swapped()], ids=["doubled", "reordered"])
async def test_replies_are_told_apart(tmp_path: Path, connect: Connect, mischief: Mischief) -> None:
    async with apart(tmp_path, connect, mischief) as (_, near, peer):
        assert [staged.state for staged in await stages(near, peer)] == ["ready"] * 3
        assert await thread(get, near.client, range(24)) == [True] * 24
        if isinstance(mischief, Twice):
            assert near.agent.links.counters.replies_unasked > 0


async def test_lost_replies_cost_time_and_nothing_else(tmp_path: Path, connect: Connect) -> None:
    async with apart(tmp_path, connect, Lost(nth=3)) as (far, near, peer):
        ended = await stages(near, peer, deadline_ms=200)
        assert {staged.state for staged in ended} <= {"ready", "partial", "expired"}
        assert any(staged.state != "ready" for staged in ended)
        assert (await near.stage(range(24), peer_of(far.agent))).state == "ready"
        assert await thread(get, near.client, range(24)) == [True] * 24


async def test_spoilt_bytes_are_dropped_and_the_innocent_source_is_not_blamed(tmp_path: Path, connect: Connect) -> None:
    async with apart(tmp_path, connect, Spoilt()) as (far, near, peer):
        staged = await near.stage(range(1), peer)
        assert (staged.state, staged.leading) == ("partial", 0)
        assert near.agent.fetcher.counters.corrupt_received == 1
        await near.agent.fetcher.close()  # what is told behind a fetch has been told
        assert far.agent.store.counters.corrupt_dram == 0
        assert await thread(get, far.client, range(24)) == [True] * 24


async def test_a_half_open_peer_is_given_up_and_met_again(tmp_path: Path, connect: Connect) -> None:
    async with apart(tmp_path, connect, HalfOpen()) as (far, near, peer):
        staged = await near.stage(range(24), peer, deadline_ms=3000)
        assert (staged.state, staged.leading) == ("partial", 0)
        assert near.agent.fetcher.counters.fetches_failed > 0
        assert (await near.stage(range(24), peer_of(far.agent))).state == "ready"
        assert await thread(get, near.client, range(24)) == [True] * 24


async def test_a_cancel_in_the_middle_of_a_page_takes_the_memory_back(tmp_path: Path, connect: Connect) -> None:
    """The page is half here when nobody wants it any more: no byte may arrive in memory that is someone else's by then."""
    async with apart(tmp_path, connect, HalfOpen()) as (_, near, peer):
        begun = await near.begin(range(24), peer, deadline_ms=30_000)
        await eventually(lambda: len(near.agent.store.tiering.writes), "pages are claimed")
        await near.ask(wire.CancelStage(begun))
        await eventually(lambda: not len(near.agent.store.tiering.writes), "given back")
        assert (await near.ended(begun)).state == "cancelled"
        assert near.agent.store.tiering.dram.slabs.used_bytes == 0


async def test_two_nodes_of_one_name_do_not_mix(tmp_path: Path, connect: Connect) -> None:
    """A mistake of an operator: each is met at its own address, and every page is checked."""
    first, second = config_of(tmp_path, "twin"), config_of(tmp_path, "twin")
    second["socket"] = str(tmp_path / "other.sock")
    async with (
        node(first, connect) as one,
        node(second, connect, epoch=2) as other,
        node(config_of(tmp_path, "near"), connect) as near,
    ):
        await thread(put, one.client, range(4))
        await thread(put, other.client, range(4, 8))
        staged = await near.stage(range(8), peer_of(one.agent), peer_of(other.agent))
        assert (staged.state, staged.leading) == ("ready", 8)
        assert await thread(get, near.client, range(8)) == [True] * 8
        assert len(near.agent.links) == 2


async def test_a_clock_that_jumps_ends_leases_and_nothing_else(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1e9]
    monkeypatch.setattr(agent_module, "monotonic_ms", lambda: clock[0])
    async with node(config_of(tmp_path), connect) as only:
        await thread(put, only.client, range(8))
        acquired = await only.ask(wire.Acquire(only.space, digests(range(8)), 30_000))
        reserved = await only.ask(wire.Reserve(only.space, digests([50]), PAGE_BYTES))
        clock[0] += 3_600_000
        await eventually(lambda: only.agent.store.running_leases == 0, "the lease ends")
        assert await only.ask(wire.Renew(acquired.lease, 1000)) == wire.Done(Status.MISS)
        assert (await only.ask(wire.Commit(reserved.write, b"c" * 16))).status is Status.MISS
        clock[0] -= 7_200_000
        await asyncio.sleep(0)
        assert await thread(get, only.client, range(8)) == [True] * 8
        assert await thread(put, only.client, range(50, 58)) == [True] * 8
        assert await thread(get, only.client, range(50, 58)) == [True] * 8
        assert only.agent.store.meet(SPACE)


async def test_what_a_cancelled_stage_was_bringing_is_brought_by_the_next(tmp_path: Path, connect: Connect) -> None:
    late = HeldUp(wire.PagesSent)
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        await thread(put, far.client, range(24))
        async with chaos(peer_of(far.agent), late) as peer:
            store = far.agent.store
            first = await near.begin(range(24), peer)
            await eventually(lambda: late.held, "its pages are on their way")
            second = await near.begin(range(24), peer)
            await eventually(lambda: store.counters.dram_hits == 48 and store.running_leases == 1, "the next was told to wait")
            await near.ask(wire.CancelStage(first))
            late.let_go()
            assert (await near.ended(second)).state == "ready"


async def test_a_stage_that_met_another_goes_on_behind_it(tmp_path: Path, connect: Connect) -> None:
    late = HeldUp(wire.PagesSent)
    configs = [config_of(tmp_path, name, pool_mib=24) for name in ("far", "near")]
    async with node(configs[0], connect) as far, node(configs[1], connect) as near:
        await thread(put, far.client, range(160))
        async with chaos(peer_of(far.agent), late) as peer:
            first = await near.begin(range(120, 128), peer)
            await eventually(lambda: late.held, "its pages are on their way")
            second = await near.begin(range(160), peer)
            await eventually(lambda: len(late.held) == 2, "those before them, too")
            late.let_go()
            assert (await near.ended(first)).state == "ready"
            staged = await near.ended(second)
            assert (staged.state, staged.leading) == ("ready", 160)


async def test_what_a_client_began_and_never_wrote_is_brought_once_its_time_is_up(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, "near")
    config["dram"]["pending_ttl_ms"] = 100
    async with node(config_of(tmp_path, "far"), connect) as far, node(config, connect) as near:
        await thread(put, far.client, range(8))
        assert (await near.ask(wire.Reserve(near.space, digests(range(4, 8)), PAGE_BYTES))).write
        staged = await near.stage(range(8), peer_of(far.agent))
        assert (staged.state, staged.leading) == ("ready", 8)
