"""Following an agent through its nonsense and through faults of our own: what it holds is found again afterwards."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from costmodel.values import Tier, WorkerKey
from kvtier.control.follower import AgentFollower, FollowSettings
from kvtier.index.events import BlockEvent
from kvtier.index.memory import BlockIndex
from kvtier.page.space import PageSpace
from kvtier.wire import messages as wire
from kvtier.wire.messages import EventBatch, EventRun, Peer

SPACE = PageSpace("m", "bfloat16", "page_first", 16)
NAME = b"n" * 16
READER = WorkerKey("w")
SETTINGS = FollowSettings(poll_ms=0, spaces_ms=0, retry_ms=0)


class Link:
    """An agent that has stored one block a batch, and answers with `spoilt` once where that is set."""

    def __init__(self, stored: int) -> None:
        self.batches = [_stored(number) for number in range(stored)]
        self.spoilt: EventBatch | None = None

    async def to(self, peer: Peer) -> Link:
        return self

    async def call(self, request: wire.Message, deadline_s: float) -> wire.Message:
        await asyncio.sleep(0)
        if isinstance(request, wire.AskSpaces):
            return wire.Spaces(1, {NAME: SPACE})
        assert isinstance(request, wire.ReplayEvents)
        spoilt, self.spoilt = self.spoilt, None
        return wire.Events(1, [spoilt] if spoilt else self.batches[request.seq :], snapshot=False)


def _stored(number: int, tier: int = Tier.L3) -> EventBatch:
    return EventBatch(number, [EventRun(True, tier, array("q", [number]).tobytes(), 16)])


class Faulty(BlockIndex):
    """Fails at one block."""

    fails_at: int | None = None

    def apply(self, source: Any, event: BlockEvent, now_ms: float) -> None:
        if self.fails_at is not None and self.fails_at in getattr(event, "hashes", ()):
            self.fails_at = None
            raise RuntimeError("a fault of the index")
        super().apply(source, event, now_ms)


class Followed:
    def __init__(self, stored: int) -> None:
        self.link = Link(stored)
        self.index = Faulty(256, max_sources=4)
        self.index.attach(READER, "a")
        links: Any = self.link
        peer = Peer("a", "127.0.0.1", 1)
        self.follower = AgentFollower(peer, links, lambda _: [self.index], lambda: 0.0, SETTINGS)
        self.running = asyncio.create_task(self._run())
        self.crashes = 0

    async def _run(self) -> None:
        """As its owner does."""
        while True:
            try:
                await self.follower.run()
            except RuntimeError:
                self.crashes += 1

    @property
    def found(self) -> int:
        """Leading blocks that a worker of the node would find."""
        match = self.index.match(range(9), 0.0).get(READER)
        return match.runs[0].blocks if match else 0

    async def until(self, count: int) -> None:
        await self.until_true(lambda: self.found == count)

    async def until_true(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not fact():  # noqa: ASYNC110  facts lie in several objects
                await asyncio.sleep(0)

    async def end(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running
        assert self.found == 0


async def test_after_a_fault_everything_is_asked_for_again() -> None:
    followed = Followed(3)
    await followed.until(3)
    followed.index.fails_at = 3
    followed.link.batches.append(_stored(3))
    await followed.until(4)
    assert followed.crashes == 1
    await followed.end()


@pytest.mark.parametrize("spoilt", [_stored(3, tier=9), EventBatch(3, [EventRun(True, Tier.L3, b"not eight", 16)])])
async def test_events_that_are_none_are_the_agent_s_fault(spoilt: EventBatch) -> None:
    followed = Followed(3)
    await followed.until(3)
    followed.link.spoilt = spoilt
    await followed.until_true(lambda: bool(followed.follower.fault))
    assert followed.found == 0, "it is not believed meanwhile"
    followed.link.batches.append(_stored(3))
    await followed.until(4)
    assert followed.crashes == 0
    await followed.end()
