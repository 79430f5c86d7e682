"""Follows what the configured agents hold into the pools' indexes, and tells those which node each worker reads from.

One task an agent. Workers are attached as they are discovered, because their ranks are known only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from kvtier.control.follower import AgentFollower, FollowSettings, FollowStatus
from kvtier.index.memory import BlockIndex
from kvtier.page.space import PageSpace
from kvtier.transport.links import PeerLinks
from kvtier.wire.messages import Peer
from router.clock import Clock
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.prefetch.node_agents import model_name

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0


class PoolNodes:
    """`start` begins, `attach` must be called every so often, `close` ends it. `crashes` counts faults of our own."""

    def __init__(self, peers: Sequence[Peer], links: PeerLinks, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._nodes = {peer.node for peer in peers}
        self._followers = [AgentFollower(peer, links, self._choose, clock, FollowSettings()) for peer in peers]
        self._tasks: list[asyncio.Task[None]] = []
        self.crashes = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(follower)) for follower in self._followers]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> list[FollowStatus]:
        return [follower.status for follower in self._followers]

    def attach(self) -> None:
        """Idempotent, and cheap where nothing is new."""
        if not self._nodes:
            return
        for pool in self._fleet.pools.values():
            for worker in pool.workers.values():
                if worker.info is not None and worker.node in self._nodes:
                    for key in worker.keys:
                        pool.blocks.attach(key, worker.node)

    async def _follow(self, follower: AgentFollower) -> None:
        while True:
            try:
                await follower.run()
            except Exception:  # noqa: BLE001  the root of this task
                self.crashes += 1
                _log.exception("agent_follower_crashed", node=follower.peer.node)
                await asyncio.sleep(_AGAIN_S)

    def _choose(self, space: PageSpace) -> Sequence[BlockIndex]:
        return [pool.blocks for pool in self._fleet.pools.values() if _speaks_of(pool, space)]


def _speaks_of(pool: Pool, space: PageSpace) -> bool:
    """Whether the pages of a space are those that the pool's engines compute."""
    pages = {worker.page_size for worker in pool.workers.values() if worker.page_size}
    return space.page_tokens in pages and model_name(space.model) in {model_name(name) for name in pool.models}
