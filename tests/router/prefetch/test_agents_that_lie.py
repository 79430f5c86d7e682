"""An agent's nonsense is that agent's fault, and nobody else's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvtier.wire import messages as wire
from kvtier.wire.messages import Peer
from router.prefetch.node_agents import AgentFault, LinkedAgents, Ticket

NODE = "n0"


class Link:
    """Answers everything with one reply."""

    def __init__(self, reply: wire.Message) -> None:
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
        await agents(wire.Stats({"dram_bytes": told})).free_bytes(NODE)
    assert await agents(wire.Stats({"dram_bytes": 7.0, "dram_used_bytes": 4.0})).free_bytes(NODE) == 3


async def test_a_stage_is_in_a_state_that_there_is() -> None:
    with pytest.raises(AgentFault, match="asleep"):
        await agents(wire.Staging(1, "asleep", 4, 0, 0)).progress(Ticket(NODE, (1,)))
