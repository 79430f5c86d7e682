"""Real SGLang with a node agent behind its host tier. Runs in a process of its own: see scripts/test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from storage_node import Node

from bench.reach.arms import Sizes, l2_l3
from bench.reach.experiment import pairs_of
from bench.reach.node import NodeAgent
from engine_adapters.launch.environments import ROOT

MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
SIZES = Sizes(l1_tokens=16_384, l2_tokens=32_768, l3_tokens=65_536)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    folder: Path = tmp_path_factory.mktemp("storage")
    agent = NodeAgent(folder, dram_bytes=SIZES.l3_bytes, ssd_bytes=256 << 20)
    await agent.start()
    try:
        async with pairs_of(l2_l3(SIZES, MODEL_DIR, agent, folder), folder) as (pairs, pool):
            yield Node(agent, pairs, pool)
    finally:
        await agent.stop()
