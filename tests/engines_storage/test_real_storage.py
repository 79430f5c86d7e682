"""A prefix on real engines: computed on one server, restored on another, cut on demand, and alive after their death."""

from __future__ import annotations

import asyncio

import pytest
from storage_node import Node

from bench.reach.arms import WORKER
from bench.reach.experiment import travel
from bench.reach.prompts import prompts
from costmodel.values import Tier
from kvtier.client.channel import Channel
from kvtier.hashing.sglang import Chain
from kvtier.wire.messages import Done, SetCut

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

PAGE_TOKENS = 16


async def test_prompts_travel_and_outlive_their_servers(node: Node) -> None:
    wanted = prompts(6, 2000, seed=11)
    travelled = await travel(node.pairs, node.pool, node.agent, wanted, print)
    assert (travelled.restored_from_storage, travelled.restored_after_kill) == (6, 6)
    assert travelled.text_mismatches == 0
    assert (await node.agent.numbers())["promoted"] > 0


async def test_a_cut_is_kept_by_the_engine(node: Node) -> None:
    (prompt,) = prompts(1, 1000, seed=12)
    await node.pairs.ask(0, prompt, 1)
    await node.agent.settled()
    _, digests = Chain(PAGE_TOKENS).extend_digests(prompt)
    channel = await asyncio.to_thread(Channel, node.agent.socket, 5.0)
    try:
        assert await asyncio.to_thread(channel.ask, SetCut(WORKER, digests[30], 60_000), 5.0) == Done()
    finally:
        channel.close()
    cut = await node.pairs.ask(1, prompt, 1)
    assert cut.cached_by_tier == {Tier.L3: 30 * PAGE_TOKENS}


async def test_servers_go_on_without_their_agent(node: Node) -> None:
    stored, fresh = prompts(2, 600, seed=13)
    before = await node.pairs.ask(0, stored, 8)
    await node.agent.settled()
    await node.agent.kill()
    try:
        assert (await node.pairs.ask(1, stored, 8)).text == before.text  # computed anew
        assert (await node.pairs.ask(0, fresh, 8)).cached_tokens == 0
    finally:
        await node.agent.start()
