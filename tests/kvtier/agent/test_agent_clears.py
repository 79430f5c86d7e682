"""A clear reaches what is on its way: puts that are being written, and pages that a peer is sending."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_rig import PAGE_BYTES, config_of, digests, eventually, get, peer_of, put
from chaos_link import HeldUp, chaos
from node_rig import Connect, node, thread

from kvtier.page.status import Status
from kvtier.wire import messages as wire


@pytest.mark.parametrize("kind", [wire.Acquired, wire.PagesSent])
async def test_what_a_peer_sends_is_not_stored_behind_a_clear(
    tmp_path: Path, connect: Connect, kind: type[wire.Message]
) -> None:
    late = HeldUp(kind)
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        assert all(await thread(put, far.client, range(24)))
        async with chaos(peer_of(far.agent), late) as peer:
            stage = await near.begin(range(24), peer)
            await eventually(lambda: late.held, "an answer is held up")
            assert await thread(near.client.clear)
            late.let_go()
            assert (await near.ended(stage)).state == "cancelled"
            await eventually(lambda: not len(near.agent.store.tiering.writes), "no claim is left")
        assert await thread(get, near.client, range(24)) == [False] * 24
        assert near.agent.fetcher.counters.fetched_pages == 0
        assert (await near.stage(range(24), peer_of(far.agent))).state == "ready"


async def test_a_put_begun_before_a_clear_is_not_stored_behind_it(tmp_path: Path, connect: Connect) -> None:
    async with node(config_of(tmp_path, ssd={}), connect) as here:
        reserved = await here.ask(wire.Reserve(here.space, digests(range(4)), PAGE_BYTES))
        assert await thread(here.client.clear)
        assert await here.ask(wire.Commit(reserved.write, bytes(64))) == wire.Done(Status.MISS)
        assert await thread(get, here.client, range(4)) == [False] * 4
        assert await thread(put, here.client, range(4)) == [True] * 4
        assert await thread(get, here.client, range(4)) == [True] * 4
        await eventually(lambda: here.agent.store.counters.demoted == 4, "on SSD, and nothing else")
