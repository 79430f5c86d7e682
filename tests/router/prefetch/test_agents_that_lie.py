"""An agent's nonsense is that agent's fault, and nobody else's."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from kvtier.page.space import PageSpace, Shard
from kvtier.prefetch.events import FailReason
from kvtier.wire import messages as wire
from kvtier.wire.messages import Peer
from router.prefetch.node_agents import AgentFault, LinkedAgents, Pages, Ticket

NODE = "n0"
EPOCH = 7


class Link:
    """Answers everything with one reply."""

    def __init__(self, reply: wire.Message) -> None:
        self.greeting = wire.Greeting(wire.PROTOCOL_VERSION, NODE, EPOCH, 1, "plain")
        self._reply = reply

    async def to(self, peer: Peer) -> Link:
        return self

    async def call(self, request: wire.Message, deadline_s: float) -> wire.Message:
        return self._reply


def agents(reply: wire.Message) -> LinkedAgents:
    links: Any = Link(reply)
    return LinkedAgents({NODE: Peer(NODE, "127.0.0.1", 1)}, links)


@pytest.mark.parametrize("told", [math.nan, math.inf, -math.inf])
async def test_free_bytes_are_a_number(told: float) -> None:
    with pytest.raises(AgentFault):
        await agents(wire.Stats({"dram_bytes": told})).look(NODE)
    assert await agents(wire.Stats({"dram_bytes": 7.0, "dram_used_bytes": 4.0})).look(NODE) == (EPOCH, 3, math.inf)


@pytest.mark.parametrize("told", [math.nan, -math.inf])
async def test_what_stages_may_hold_is_a_number(told: float) -> None:
    with pytest.raises(AgentFault):
        await agents(wire.Stats({"stages_max_bytes": told})).look(NODE)
    assert await agents(wire.Stats({"stages_max_bytes": 2.0})).look(NODE) == (EPOCH, 0, 2.0)


async def test_a_stage_is_in_a_state_that_there_is() -> None:
    with pytest.raises(AgentFault, match="asleep"):
        await agents(wire.Staging(1, "asleep", 4, 0, 0)).progress(Ticket(NODE, EPOCH, ((1,),)))


class Growing(Link):
    """Knows of more spaces from call to call, and begins whatever stage it is asked for."""

    def __init__(self, *told: tuple[PageSpace, ...]) -> None:
        super().__init__(wire.Staging(1, "queued", 4, 3, 0))
        self._told = list(told)
        self.ordered: list[wire.Stage] = []

    async def attach(self, space: PageSpace, deadline_s: float) -> int:
        return 1

    async def call(self, request: wire.Message, deadline_s: float) -> wire.Message:
        if isinstance(request, wire.AskSpaces):
            spaces = self._told.pop(0)
            return wire.Spaces(EPOCH, {bytes([number]) * 16: space for number, space in enumerate(spaces)})
        if isinstance(request, wire.Stage):
            self.ordered.append(request)
        return await super().call(request, deadline_s)


async def test_a_space_that_is_new_is_staged_too() -> None:
    """The engine came back with another KV type."""
    old = PageSpace("m", "bfloat16", "page_first", 16)
    new = msgspec.structs.replace(old, kv_dtype="float8", shard=Shard(0, 2))
    link: Any = Growing((old,), (old, new))
    known = LinkedAgents({NODE: Peer(NODE, "127.0.0.1", 1)}, link)
    pages = Pages(frozenset({"m"}), 16, b"d" * 32)
    assert await known.stage(pages, NODE, NODE, 1.0, 1.0, None) == Ticket(NODE, EPOCH, ((1,),), 3)
    assert await known.stage(pages, NODE, NODE, 1.0, 1.0, 10) == Ticket(NODE, EPOCH, ((1,), (1, 1)), 3)
    assert [order.max_bytes for order in link.ordered] == [0, 3, 3, 3]


async def test_another_life_of_an_agent_has_no_stage_of_ours() -> None:
    with pytest.raises(AgentFault, match="restarted") as raised:
        await agents(wire.Staging(1, "ready", 4, 4, 0)).progress(Ticket(NODE, EPOCH - 1, ((1,),)))
    assert (raised.value.reason, raised.value.node) == (FailReason.NODE_LOST, NODE)


async def test_what_another_life_has_given_our_numbers_to_is_left_alone() -> None:
    refuses = agents(wire.Refused("it is not yours"))
    for undo in (refuses.unpin, refuses.cancel):
        await undo(Ticket(NODE, EPOCH - 1, ((1,),)))
        with pytest.raises(AgentFault):
            await undo(Ticket(NODE, EPOCH, ((1,),)))
