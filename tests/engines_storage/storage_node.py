"""What a test of real engines with storage gets."""

from __future__ import annotations

from bench.reach.node import NodeAgent
from bench.reach.pair import Pairs
from engine_adapters.launch.pool import Pool


class Node:
    """Two prefill servers and one decode server, and the agent of their host."""

    def __init__(self, agent: NodeAgent, pairs: Pairs, pool: Pool) -> None:
        self.agent = agent
        self.pairs = pairs
        self.pool = pool
