"""Follows every configured agent into the pools' indexes, and says which workers can restore what agents hold.

One task an agent. A page space belongs to a pool that serves its model with its page size. A worker reaches the pages if its
engine says that it stores there (or in UMBP, whose master the gateway may be); of an engine that tells nothing about it, if an
agent is configured for its node. Pages of other nodes count where somebody brings them near (`remote`): an engine finds those
of its own node alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from costmodel.values import Role
from kvtier.control.follower import AgentFollower, FollowSettings, FollowStatus
from kvtier.index.layout import Home
from kvtier.index.memory import BlockIndex
from kvtier.page.space import PageSpace
from kvtier.transport.links import PeerLinks
from kvtier.wire.messages import Peer
from router.clock import Clock
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker

_log = structlog.get_logger(__name__)
_ATTACH_S = 1.0
_AGAIN_S = 1.0
_STORAGE_FLAG = "hicache_storage_backend"
_OUR_BACKEND = "dynamic"
_UMBP_BACKEND = "mori"


class Followers:
    """`start` and `close` (awaited) are its life."""

    def __init__(
        self,
        peers: Mapping[str, Peer],
        links: PeerLinks,
        fleet: Fleet,
        clock: Clock,
        *,
        remote: bool,
        umbp: bool = False,
        settings: FollowSettings | None = None,
    ) -> None:
        self.crashes = 0
        self._remote = remote
        self._umbp = umbp
        self._fleet = fleet
        self._nodes = frozenset(peers)
        self._followers = [
            AgentFollower(peer, links, self._choose, clock, settings or FollowSettings()) for peer in peers.values()
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def status(self) -> list[FollowStatus]:
        return [follower.status for follower in self._followers]

    def start(self) -> None:
        if self._followers or self._umbp:
            self._tasks = [asyncio.create_task(self._guard(each), name=f"follow {each.peer.node}") for each in self._followers]
            self._tasks.append(asyncio.create_task(self._attach_often(), name="attach workers"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def attach(self) -> None:
        """Tell every pool's index which of its workers reach the pages, and from where. Cheap where nothing is new."""
        for pool in self._fleet.pools.values():
            for worker in pool.workers.values():
                home = self._home(worker)
                for key in worker.keys:
                    if home is None:
                        pool.blocks.detach(key)
                    else:
                        pool.blocks.attach(key, home.node, remote=home.remote, brought=home.brought)

    async def _guard(self, follower: AgentFollower) -> None:
        while True:
            try:
                await follower.run()
            except Exception:  # noqa: BLE001  the task root: a fault here must not end the following
                self.crashes += 1
                _log.exception("agent_follower_crashed", node=follower.peer.node)
                await asyncio.sleep(_AGAIN_S)

    async def _attach_often(self) -> None:
        while True:
            self.attach()
            await asyncio.sleep(_ATTACH_S)

    def _home(self, worker: Worker) -> Home | None:
        """None: it reaches no pages. UMBP's clients read from every node by themselves. An engine that tells of no storage is
        taken to share its node's, but a decode worker gets its KV from prefill."""
        if worker.info is None:
            return None
        here = worker.node if worker.node in self._nodes else None
        backend = worker.info.flags.get(_STORAGE_FLAG)
        if backend == _UMBP_BACKEND and self._umbp:
            return Home(worker.node, remote=True)
        silent = backend is None and here is not None and worker.role is not Role.DECODE
        if backend == _OUR_BACKEND or silent:
            return Home(here, self._remote, brought=self._remote)
        return None

    def _choose(self, space: PageSpace) -> Sequence[BlockIndex]:
        return [pool.blocks for pool in self._fleet.pools.values() if serves(pool, space)]


def serves(pool: Pool, space: PageSpace) -> bool:
    """By the model's name as engines tell it, a path's last part counting as the name, and by their page size."""
    names = {_short(name) for name in pool.models}
    pages = {worker.page_size for worker in pool.workers.values() if worker.page_size}
    return _short(space.model) in names and space.page_tokens in pages


def _short(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]
