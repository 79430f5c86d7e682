"""An agent in this process with a client of it, as one thing to ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_rig import SPACE, agent_here, digests

from kvtier.agent.agent import Agent
from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient
from kvtier.wire import messages as wire

thread = asyncio.to_thread
Connect = Callable[..., PageClient]
ENDED = {"ready", "partial", "full", "expired", "cancelled", "failed"}


class Node:
    """An agent in this loop, a client of it, and a bare connection."""

    def __init__(self, agent: Agent, client: PageClient) -> None:
        self.agent = agent
        self.client = client
        self.channel = Channel(Path(agent.config.socket), 5.0)
        self.space = 0

    async def ask(self, request: wire.Request) -> Any:
        return await thread(self.channel.ask, request, 5.0)

    async def begin(self, numbers: range, *sources: wire.Peer, deadline_ms: float = 5000, **more: Any) -> int:
        begun = await self.ask(wire.Stage(self.space, digests(numbers), list(sources), deadline_ms, **more))
        assert isinstance(begun, wire.Staging)
        return begun.stage

    async def ended(self, stage: int) -> wire.Staging:
        """What it came to."""
        while True:
            staging = await self.ask(wire.AskStage(stage))
            assert isinstance(staging, wire.Staging)
            if staging.state in ENDED:
                return staging

    async def stage(self, numbers: range, *sources: wire.Peer, **more: Any) -> wire.Staging:
        """To its end."""
        return await self.ended(await self.begin(numbers, *sources, **more))

    @property
    def held(self) -> int:
        return sum(page.holds for page in self.agent.store.catalog.pages())


@asynccontextmanager
async def node(config: dict[str, Any], connect: Connect, epoch: int = 1) -> AsyncIterator[Node]:
    async with agent_here(config, epoch) as agent:
        made = await thread(Node, agent, connect(config))
        made.space = (await made.ask(wire.Attach(SPACE))).space
        try:
            yield made
        finally:
            made.channel.close()
