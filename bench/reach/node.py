"""A node agent as a process of an experiment, and what it says about itself."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from engine_adapters.launch.environments import ROOT
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import EngineProcess, EngineStartError, start_process
from kvtier.client.channel import AgentUnavailable, Channel
from kvtier.wire.messages import AskSpaces, AskStats, Attach, Attached, Clear, Peer, Spaces, Stats
from router.prefetch.node_agents import shards_of

_START_S = 20.0
_POLL_S = 0.05
_ASK_S = 5.0


class NodeAgent:
    """Owned by whoever made it: `kill` or `stop` must be awaited. `start` again is another life with the same SSD."""

    def __init__(self, folder: Path, *, dram_bytes: int, ssd_bytes: int = 0, node: str = "reach", peers: bool = False) -> None:
        self._folder = folder
        self.peer = Peer(node, "", 0)
        self.socket = folder / f"{node}.sock"
        self._file = folder / f"{node}.yaml"
        config: dict[str, Any] = {
            "node": node,
            "socket": str(self.socket),
            "dram": {"bytes": dram_bytes, "slab_bytes": min(16 << 20, max(2 << 20, dram_bytes // 32))},
        }
        if ssd_bytes:
            directory = str(folder / "ssd")
            config["ssd"] = {"directory": directory, "bytes": ssd_bytes, "segment_bytes": max(4 << 20, ssd_bytes // 16)}
        if peers:
            config["listen"] = {"port": free_ports(1)[0]}
            self.peer = Peer(node, "127.0.0.1", config["listen"]["port"])
        self._file.write_bytes(msgspec.yaml.encode(config))
        self._process: EngineProcess | None = None

    async def start(self) -> None:
        """Raises `EngineStartError`."""
        command = [sys.executable, "-m", "kvtier.agent", str(self._file)]
        self._process = await start_process("agent", "", command, {"PYTHONPATH": str(ROOT)}, self._folder / "agent.log")
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s and self._process.alive:
            try:
                await self.numbers()
            except AgentUnavailable:
                await asyncio.sleep(_POLL_S)
            else:
                return
        raise EngineStartError(f"the agent did not start; see {self._folder / 'agent.log'}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    async def numbers(self) -> dict[str, float]:
        """Raises `AgentUnavailable`."""
        return await asyncio.to_thread(self._numbers)

    async def settled(self, quiet_s: float = 0.1, deadline_s: float = 10.0) -> None:
        """Until engines have put nothing for a while: they store behind their replies. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            before = -1.0
            while before != (before := (await self.numbers())["stored"]):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(quiet_s)

    async def written(self, deadline_s: float = 30.0) -> None:
        """Until everything that it has lies on SSD, too. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            while True:
                numbers = await self.numbers()
                if not numbers["writes_open"] and not numbers["unwritten_pages"]:
                    return
                await asyncio.sleep(_POLL_S)

    async def clear(self) -> None:
        """Forgets the pages of every space. Raises `AgentUnavailable`."""
        await asyncio.to_thread(self._clear)

    async def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            await self._process.kill()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(10.0)

    def _numbers(self) -> dict[str, float]:
        channel = Channel(self.socket, _ASK_S)
        try:
            reply = channel.ask(AskStats(), _ASK_S)
        finally:
            channel.close()
        assert isinstance(reply, Stats), "an agent answers what it was asked"
        return reply.numbers

    def _clear(self) -> None:
        channel = Channel(self.socket, _ASK_S)
        try:
            told = channel.ask(AskSpaces(), _ASK_S)
            wholes = told.spaces.values() if isinstance(told, Spaces) else ()
            for space in (shard for whole in wholes for shard in shards_of(whole)):
                named = channel.ask(Attach(space), _ASK_S)
                if isinstance(named, Attached):
                    channel.ask(Clear(named.space), _ASK_S)
        finally:
            channel.close()
