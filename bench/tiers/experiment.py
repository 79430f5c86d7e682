"""The parts of `bench tiers`, one after the other, with an agent of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from bench.reach.node import NodeAgent
from bench.tiers.control import ControlCpu, control_cpu
from bench.tiers.local import PAGE_BYTES, ROUND_BYTES, LocalRatios, local_ratios
from bench.tiers.loopback import LoopbackRatio, loopback_ratio
from bench.tiers.ssd import SsdRatio, ssd_ratio
from bench.tiers_index import index_mb_per_million, worst_match_ms
from kvtier.client.channel import Channel
from kvtier.client.copier import PortableCopier
from kvtier.client.native_copier import best_copier
from kvtier.copy.native import native_module

_POOL_BYTES = 6 * ROUND_BYTES
_SEED = 1

Tell = Callable[[str], None]


class Parts(StrEnum):
    LOCAL = "local"
    LOOPBACK = "loopback"
    SSD = "ssd"
    INDEX = "index"
    CONTROL = "control"


class Outcome(msgspec.Struct):
    native: bool
    backing: str = ""
    local: dict[int, LocalRatios] = {}
    portable: dict[int, LocalRatios] = {}
    loopback: LoopbackRatio | None = None
    ssd: SsdRatio | None = None
    match_ms: float | None = None
    index_mb_per_million: float | None = None
    control_cpu: ControlCpu | None = None


def run_experiment(folder: Path, parts: Sequence[Parts], rounds: int, tell: Tell) -> Outcome:
    """Raises `EngineStartError` where the agent does not start."""
    outcome = Outcome(native=native_module() is not None)
    if {Parts.LOCAL, Parts.LOOPBACK, Parts.CONTROL} & set(parts):
        asyncio.run(_with_agent(folder, parts, rounds, outcome, tell))
    if Parts.SSD in parts:
        tell("pages from SSD")
        outcome.ssd = ssd_ratio(folder / "segments", rounds, _SEED)
    if Parts.INDEX in parts:
        tell("index")
        outcome.match_ms = worst_match_ms()
        outcome.index_mb_per_million = index_mb_per_million()
    return outcome


async def _with_agent(folder: Path, parts: Sequence[Parts], rounds: int, outcome: Outcome, tell: Tell) -> None:
    agent = NodeAgent(folder, dram_bytes=_POOL_BYTES, node="tiers", peers=True)
    await agent.start()
    try:
        await asyncio.to_thread(_ask, agent, parts, rounds, outcome, tell)
    finally:
        await agent.stop()


def _ask(agent: NodeAgent, parts: Sequence[Parts], rounds: int, outcome: Outcome, tell: Tell) -> None:
    outcome.backing = _backing(agent)
    if Parts.LOCAL in parts:
        for index, size in enumerate(PAGE_BYTES):
            tell(f"local pages of {size >> 10} KiB")
            outcome.local[size] = local_ratios(agent.socket, best_copier(), size, rounds, index * 1000)
            outcome.portable[size] = local_ratios(agent.socket, PortableCopier(), size, rounds, index * 1000 + 500)
    if Parts.LOOPBACK in parts:
        tell("pages over loopback")
        outcome.loopback = loopback_ratio(agent.socket, agent.peer, rounds)
    if Parts.CONTROL in parts:
        tell("control of a thousand pages")
        outcome.control_cpu = control_cpu(agent.socket, agent.pid)


def _backing(agent: NodeAgent) -> str:
    channel = Channel(agent.socket, 5.0)
    try:
        return channel.greeting.backing
    finally:
        channel.close()
