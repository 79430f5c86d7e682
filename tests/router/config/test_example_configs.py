"""The files under configs/ are what they say: complete, and in agreement with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtier.agent.config import load_config as load_agent
from router.config.load import load_config

CONFIGS = Path(__file__).parents[3] / "configs"
GATEWAYS = sorted(CONFIGS.glob("*.yaml"))
KEYS = {"LOADBACK_API_KEY": "client", "LOADBACK_ADMIN_TOKEN": "operator", "UPSTREAM_API_KEY": "upstream"}


@pytest.mark.parametrize("path", GATEWAYS, ids=lambda path: path.name)
def test_every_example_is_a_gateway_with_workers(path: Path) -> None:
    config = load_config(path, KEYS)
    assert all(pool.unified or (pool.prefill and pool.decode) for pool in config.pools)


def test_the_example_with_agents_puts_workers_beside_them() -> None:
    config = load_config(CONFIGS / "sglang-agents.yaml", KEYS)
    nodes = [worker.node for pool in config.pools for worker in pool.prefill]
    assert nodes == [agent.node for agent in config.agents]
    agent = load_agent(CONFIGS / "agent" / "node.yaml")
    assert agent.listen is not None
    assert (agent.node, agent.listen.port) in {(each.node, each.port) for each in config.agents}
