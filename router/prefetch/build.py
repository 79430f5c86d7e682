"""Puts prefetch together for one gateway."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import httpx
import msgspec

from kvtier.prefetch.events import Trigger
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import Peer
from router.clock import Clock
from router.config.tree import Config, HardwareConfig
from router.fleet.aborter import Aborter
from router.fleet.fleet import Fleet
from router.fleet.monitor import Monitor
from router.prefetch.executor import Executor
from router.prefetch.fleet_view import FleetView
from router.prefetch.kv_bytes import KvBytes
from router.prefetch.links import LinkBook
from router.prefetch.node_agents import LinkedAgents
from router.prefetch.prefetcher import Prefetcher
from router.prefetch.subjects import Subjects
from router.prefetch.warmer import Warmer
from router.threads.store import ThreadStore
from router.turn.extend import Extender


class Prefetch:
    """The parts that others need: the prefetcher, and the prompts that clients name."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        threads: ThreadStore,
        extender: Extender,
        monitor: Monitor,
        http: httpx.AsyncClient,
        aborter: Aborter,
        clock: Clock,
        attach: Callable[[], None],
    ) -> None:
        """`attach` tells the indexes which workers read from which node."""
        self._attach = attach
        peers = {peer.node: Peer(peer.node, peer.host, peer.port) for peer in config.agents}
        hardware = config.pools[0].hardware if config.pools else HardwareConfig()
        links = LinkBook(hardware.l3_link.as_link(), hardware.l4_link.as_link())
        self._links = PeerLinks(LinkSettings())
        self.agents = LinkedAgents(peers, self._links)
        self.subjects = Subjects(fleet, threads, extender)
        rng = Random(config.seed)
        self.life = f"{rng.getrandbits(24):06x}"  # in handles: another gateway's, or another life's, are not ours
        warmer = Warmer(fleet, self.subjects, http, aborter, rng)
        kv_bytes = KvBytes()
        view = FleetView(
            fleet,
            self.subjects,
            links,
            kv_bytes,
            lambda worker_id: sum(feed.events for feed in monitor.feeds(worker_id)),
            clock,
            warm=config.prefetch.warm,
        )
        self.prefetcher = Prefetcher(
            Planner(_params(config)),
            view,
            lambda tell: Executor(self.agents, warmer, self.subjects, links, kv_bytes, tell, clock),
            self.agents,
            tuple(peers),
            links,
            fleet,
            threads,
            self.subjects.named,
            clock,
            self._look,
        )
        self._pools = tuple(fleet.pools.values())
        self._bring()

    def switch(self, mode: Mode) -> None:
        """Raises `PrefetchDisabled` where it was off when the gateway was started."""
        self.prefetcher.switch(mode)
        self._bring()

    def start(self) -> None:
        if self.prefetcher.on:
            self.prefetcher.start()

    async def close(self) -> None:
        await self.prefetcher.close()
        await self._links.close()

    def _bring(self) -> None:
        """Turns are placed by pages of other nodes only where these are brought for them."""
        params = self.prefetcher.planner.params
        for pool in self._pools:
            pool.pages_come = params.mode is Mode.ON and Trigger.DECISION in params.triggers

    def _look(self) -> None:
        self._attach()
        self._links.sweep()


def _params(config: Config) -> PrefetchParams:
    """Without agents nothing can be staged, and triggers that only stage need not be weighed."""
    params = config.prefetch.as_params()
    if config.agents:
        return params
    return msgspec.structs.replace(params, triggers=params.triggers - {Trigger.DECISION, Trigger.DRAIN, Trigger.SCALE_OUT})
