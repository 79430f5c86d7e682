"""Looks at node agents: do they answer, and does a worker run beside each."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

import httpx

from kvtier.control.node_control import NodeUnavailable
from kvtier.control.wire_control import WireControl
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.wire.messages import Peer
from loadback.admin_api import AdminError, NodeNumbers, Tiers, fetch
from loadback.doctor.check import Check, ok, warn
from router.config.tree import AgentPeerConfig, Config

_ASK_S = 5.0
_LINKS = LinkSettings()
_FIX = "start it (loadback agent --config FILE), or correct its host and port; until then its pages count as missing"


async def check_agents(config: Config) -> list[Check]:
    """Each agent of the file, asked directly."""
    homes = {worker.home for pool in config.pools for _, worker in pool.workers()}
    links = PeerLinks(_LINKS)
    try:
        answers = await asyncio.gather(*(_ask(agent, links) for agent in config.agents))
    finally:
        await links.close()
    return [*answers, *(check_home(agent.node, homes) for agent in config.agents)]


async def check_nodes(http: httpx.AsyncClient) -> list[Check]:
    """What a running gateway says of its agents."""
    try:
        told = await fetch(http, "/admin/tiers", Tiers)
    except AdminError as error:
        return [warn("gateway", "agents", error.found, error.fix)]
    return [check_node(node) for node in told.nodes]


def check_node(node: NodeNumbers) -> Check:
    if node.fault:
        return warn(node.node, "agent", node.fault, _FIX)
    return ok(node.node, "agent", f"answers, {node.numbers.get('stored', 0):,.0f} pages stored")


def check_home(node: str, homes: AbstractSet[str]) -> Check:
    if node in homes:
        return ok(node, "workers", "run on this node")
    fix = "give the workers that attach to this agent `node` as it has"
    return warn(node, "workers", f"none runs on it; nodes of workers: {', '.join(sorted(homes))}", fix)


async def _ask(agent: AgentPeerConfig, links: PeerLinks) -> Check:
    where = f"{agent.host}:{agent.port}"
    try:
        report = await WireControl(Peer(agent.node, agent.host, agent.port), links, _ASK_S).report()
    except NodeUnavailable as error:
        return warn(agent.node, "agent", f"{where}: {error}", _FIX)
    return ok(agent.node, "agent", f"{where} answers, {report.numbers.get('stored', 0):,.0f} pages stored")
