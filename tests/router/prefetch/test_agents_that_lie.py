"""An agent's nonsense is that agent's fault, and nobody else's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvtier.prefetch.events import FailReason
from kvtier.wire import messages as wire
from kvtier.wire.messages import Peer
from router.prefetch.node_agents import AgentFault, LinkedAgents, Ticket

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
