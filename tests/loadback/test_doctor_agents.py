"""What doctor says of agents whose address in the gateway's file is wrong: it names the key, and each port is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvtier.agent.agent import Agent
from kvtier.agent.config import parse_config
from loadback.admin_api import NodeNumbers
from loadback.doctor.agents import check_agents, check_node
from loadback.doctor.check import Check, Mark
from router.config.tree import Config
from router.gateway import Gateway


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    settings: dict[str, Any] = {
        "node": "n0",
        "socket": str(tmp_path / "agent.sock"),
        "dram": {"bytes": "2 MiB", "slab_bytes": "512 KiB", "backing": "plain", "prefault": False},
        "listen": {},
        "control": {},
    }
    agent = Agent(parse_config(settings), epoch=1)
    stop, ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.run(stop, ready))
        await ready.wait()
        yield agent
        stop.set()


@pytest.fixture
def nobody() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as lent:
        return int(lent.getsockname()[1])


def config_of(agent: Agent, wrong: dict[str, Any]) -> Config:
    assert agent.control is not None
    peer = {"node": "n0", "host": "127.0.0.1", "port": agent.port, "control_port": agent.control.port} | wrong
    pools = ({"unified": ({"url": "http://127.0.0.1:1", "node": peer["node"]},)},)
    return Config.model_validate({"pools": pools, "agents": (peer,)})


async def told_of(agent: Agent, **wrong: object) -> list[Check]:
    return (await check_agents(config_of(agent, wrong)))[:2]


async def test_both_ports_are_asked(agent: Agent) -> None:
    checks = await told_of(agent)
    assert [(check.name, check.mark) for check in checks] == [("agent", Mark.OK), ("control_port", Mark.OK)]


async def test_a_wrong_control_port_is_named(agent: Agent, nobody: int) -> None:
    pages, control = await told_of(agent, control_port=nobody)
    assert (pages.mark, control.mark) == (Mark.OK, Mark.WARN)
    assert control.found == f"n0's control_port at 127.0.0.1:{nobody} cannot be reached by gRPC"
    assert "correct control_port" in control.fix


async def test_the_agents_own_wire_is_no_control_port(agent: Agent) -> None:
    _, control = await told_of(agent, control_port=agent.port)
    assert control.found == f"n0's control_port at 127.0.0.1:{agent.port} cannot be reached by gRPC"


async def test_a_wrong_port_is_told_beside_a_right_control_port(agent: Agent, nobody: int) -> None:
    pages, control = await told_of(agent, port=nobody)
    assert (pages.mark, control.mark) == (Mark.WARN, Mark.OK)
    assert pages.found == f"no connection to n0 at 127.0.0.1:{nobody}: Connection refused"


async def test_the_agent_of_another_node_is_named(agent: Agent) -> None:
    pages, control = await told_of(agent, node="n7")
    assert pages.found == f"no connection to n7 at 127.0.0.1:{agent.port}: the agent there is n0, not n7"
    assert "`node`" in pages.fix
    assert control.found == "the agent at its control_port is n0, not n7"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, ""),
        ({"port": 1}, "no connection to n0 at 127.0.0.1:1: Connection refused"),
        ({"control_port": 1}, "n0's control_port at 127.0.0.1:1 cannot be reached by gRPC"),
        ({"node": "n7"}, "the agent at its control_port is n0, not n7"),
    ],
)
async def test_a_gateways_node_fares_well_where_both_ports_answer(agent: Agent, wrong: dict[str, Any], told: str) -> None:
    gateway = Gateway(config_of(agent, wrong), lambda: 0.0, Random(1))
    ((name, node),) = gateway.tiers.nodes.by_name.items()
    try:
        await gateway.tiers.nodes.ask(name)
    finally:
        await gateway.close()
    assert node.fault == told
    check = check_node(NodeNumbers(name, fault=node.fault))
    assert check.mark is (Mark.WARN if told else Mark.OK)
    assert all(key in check.fix for key in wrong)
