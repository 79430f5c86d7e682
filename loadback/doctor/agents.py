"""Looks at node agents: do they answer, and does a worker run beside each."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from itertools import chain

import httpx

from kvtier.control.grpc_control import GrpcControl
from kvtier.control.node_control import NodeControl, NodeUnavailable
from kvtier.control.wire_control import WireControl
from kvtier.settings.address import authority
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import Peer
from loadback.admin_api import AdminError, NodeNumbers, Tiers, fetch
from loadback.doctor.check import Check, ok, warn
from router.config.tree import AgentPeerConfig, Config

_ASK_S = 5.0
_LINKS = LinkSettings()
_START = "start it (loadback agent --config FILE)"
_FIX = f"{_START}, or correct its host and port, or `node` where another answers; until then its pages count as missing"
_CONTROL_FIX = f"{_START} with this as its control.port, or correct control_port, or `node`; until then nothing is pinned there"
_EITHER_FIX = f"{_START}, or correct its host, port, control_port or node, as told; until then its pages count as missing"


async def check_agents(config: Config) -> list[Check]:
    """Each agent of the file, asked directly at each of its ports."""
    homes = {worker.home for pool in config.pools for _, worker in pool.workers()}
    links = PeerLinks(_LINKS)
    try:
        answers = await asyncio.gather(*(_examine(agent, links) for agent in config.agents))
    finally:
        await links.close()
    return [*chain.from_iterable(answers), *(check_home(agent.node, homes) for agent in config.agents)]


async def check_nodes(http: httpx.AsyncClient) -> list[Check]:
    """What a running gateway says of its agents."""
    try:
        told = await fetch(http, "/admin/tiers", Tiers)
    except AdminError as error:
        return [warn("gateway", "agents", error.found, error.fix)]
    return [check_node(node) for node in told.nodes]


def check_node(node: NodeNumbers) -> Check:
    if node.fault:
        return warn(node.node, "agent", node.fault, _EITHER_FIX)
    return ok(node.node, "agent", f"answers, {node.numbers.get('stored', 0):,.0f} pages stored")


def check_home(node: str, homes: AbstractSet[str]) -> Check:
    if node in homes:
        return ok(node, "workers", "run on this node")
    fix = "give the workers that attach to this agent `node` as it has"
    return warn(node, "workers", f"none runs on it; nodes of workers: {', '.join(sorted(homes))}", fix)


async def _examine(agent: AgentPeerConfig, links: PeerLinks) -> list[Check]:
    where = authority(agent.host, agent.port)
    peer = Peer(agent.node, agent.host, agent.port)
    checks = [await _ask(agent.node, "agent", where, WireControl(peer, links, _ASK_S), _FIX)]
    if agent.control_port is not None:
        where = authority(agent.host, agent.control_port)
        control = GrpcControl(agent.node, where, _ASK_S)
        checks.append(await _ask(agent.node, "control_port", where, control, _CONTROL_FIX))
        await control.close()
    return checks


async def _ask(node: str, name: str, where: str, control: NodeControl, fix: str) -> Check:
    try:
        report = await control.report()
    except NodeUnavailable as error:
        return warn(node, name, str(error), fix)
    return ok(node, name, f"{where} answers, {report.numbers.get('stored', 0):,.0f} pages stored")
