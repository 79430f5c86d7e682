"""Puts together what the gateway has to do with the nodes' tiers."""

from __future__ import annotations

from pathlib import Path
from random import Random

from costmodel.values import Tier
from kvtier.control.node_control import NodeControl
from kvtier.control.wire_control import WireControl
from kvtier.settings.address import authority
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.umbp.master import UmbpMaster
from kvtier.umbp.master_state import MasterState
from kvtier.wire.messages import Peer
from router.clock import Clock
from router.config.tree import AgentPeerConfig, Config, UmbpConfig
from router.fleet.fleet import Fleet
from router.fleet.followers import Followers
from router.fleet.pool import Pool
from router.tiers.both_ports import BothPorts
from router.tiers.link_lessons import LinkLessons
from router.tiers.nodes import Nodes
from router.tiers.pin_book import PinBook
from router.tiers.umbp_consult import UmbpConsult

_CALL_S = 2.0


class Tiers:
    """`start` and `close` (awaited) are its life; without agents there is nothing to do."""

    def __init__(self, config: Config, fleet: Fleet, clock: Clock, *, remote: bool) -> None:
        """`remote`: pages of other nodes are brought near before they are needed, so that they count."""
        self._links = PeerLinks(LinkSettings())
        peers = {agent.node: Peer(agent.node, agent.host, agent.port) for agent in config.agents}
        self.followers = Followers(peers, self._links, fleet, clock, remote=remote, umbp=config.umbp is not None)
        controls = {agent.node: self._control(agent, peers[agent.node]) for agent in config.agents}
        self.nodes = Nodes(controls, clock, LinkLessons(fleet).heard)
        self.umbp = _master(config.umbp, fleet, clock) if config.umbp is not None else None
        self._umbp_at = (config.umbp.host, config.umbp.port) if config.umbp is not None else None
        asked = config.umbp_master
        self.consult = UmbpConsult(asked, _pool_of(fleet, asked.pool), clock) if asked is not None else None
        rng = Random(config.seed)
        self.pins = PinBook(self.nodes, clock, rng, max_pins=config.pins.max_pins, max_ttl_s=config.pins.max_ttl_s)

    def pages(self) -> dict[str, dict[Tier, int]]:
        """Whole pages by node and tier, of the spaces that some pool serves."""
        return {status.node: status.pages for status in self.followers.status()}

    async def start(self) -> None:
        """Raises `AddressTaken` where the UMBP master's port is."""
        if self.umbp is not None and self._umbp_at is not None:
            await self.umbp.start(*self._umbp_at)
        self.followers.start()
        self.nodes.start()

    async def close(self) -> None:
        if self.umbp is not None:
            await self.umbp.close()
        if self.consult is not None:
            await self.consult.close()
        await self.followers.close()
        await self.nodes.close()
        await self._links.close()

    def _control(self, agent: AgentPeerConfig, peer: Peer) -> NodeControl:
        if agent.control_port is not None:
            return BothPorts(peer, authority(agent.host, agent.control_port), self._links, _CALL_S)
        return WireControl(peer, self._links, _CALL_S)


def _master(config: UmbpConfig, fleet: Fleet, clock: Clock) -> UmbpMaster:
    """Over the index of its pool: what UMBP's clients tell counts for that pool's workers."""
    state = MasterState(_pool_of(fleet, config.pool).blocks, Random(0), config.expire_s * 1000)
    return UmbpMaster(state, clock, Path(config.path) if config.path is not None else None)


def _pool_of(fleet: Fleet, name: str | None) -> Pool:
    """Absent: the only one."""
    return fleet.pools[name] if name is not None else next(iter(fleet.pools.values()))
