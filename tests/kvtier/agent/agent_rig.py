"""Agents for tests, inside this process and as processes of their own, and engines' memory with pages made from numbers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from kvtier.agent.agent import Agent
from kvtier.agent.config import parse_config
from kvtier.client.copier import PortableCopier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.space import PageSpace
from kvtier.wire.messages import Peer

ROOT = Path(__file__).parents[3]
SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
PAGE_BYTES = 32_768
PATIENT = ClientSettings(connect_s=5, look_s=5, get_s=5, put_s=5, lease_s=20, retry_s=0.05)
DEADLINE_S = 20.0


def digest(number: int) -> bytes:
    return sha256(number.to_bytes(8, "little")).digest()


def digests(numbers: Sequence[int]) -> bytes:
    return b"".join(map(digest, numbers))


def content(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


class EngineMemory:
    """Pages of two pieces each, as an engine's host pool has keys and values apart."""

    def __init__(self, numbers: Sequence[int], *, filled: bool = True) -> None:
        self.numbers = list(numbers)
        self._half = PAGE_BYTES // 2
        self._buffer = ctypes.create_string_buffer(PAGE_BYTES * len(self.numbers))
        self._base = ctypes.addressof(self._buffer)
        self._values = self._half * len(self.numbers)
        if filled:
            for index, number in enumerate(self.numbers):
                whole = content(number)
                for piece, part in zip(self.pieces(index), (whole[: self._half], whole[self._half :]), strict=True):
                    self.write(piece, part)

    @property
    def pages(self) -> EnginePages:
        return EnginePages.striped([(self._base, self._half), (self._base + self._values, self._half)], len(self.numbers))

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """(address, length) of each."""
        return self.pages.pieces(index)

    def write(self, piece: tuple[int, int], data: bytes) -> None:
        assert len(data) == piece[1]
        ctypes.memmove(piece[0], data, len(data))

    def page(self, index: int) -> bytes:
        return b"".join(ctypes.string_at(*piece) for piece in self.pieces(index))

    def right(self) -> list[bool]:
        """Which pages hold what their numbers say."""
        return [self.page(index) == content(number) for index, number in enumerate(self.numbers)]


def put(client: PageClient, numbers: Sequence[int]) -> list[bool]:
    memory = EngineMemory(numbers)  # must outlive the call
    return client.put(digests(numbers), memory.pages, depth=numbers[0])


def get(client: PageClient, numbers: Sequence[int]) -> list[bool]:
    """Whether each page was got; what was got is what was put."""
    memory = EngineMemory(numbers, filled=False)
    got = client.get(digests(numbers), memory.pages)
    assert all(right for right, whole in zip(memory.right(), got, strict=True) if whole), "wrong bytes were served"
    return got


def config_of(
    folder: Path, node: str = "a", *, pool_mib: int = 8, watermark: float = 0.95, ssd: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Plain data, as YAML would have it."""
    config: dict[str, Any] = {
        "node": node,
        "socket": str(folder / f"{node}.sock"),
        "dram": {
            "bytes": f"{pool_mib} MiB",
            "slab_bytes": "512 KiB",
            "backing": "plain",
            "prefault": False,
            "high_watermark": watermark,
            "low_watermark": watermark,
        },
        "listen": {"host": "127.0.0.1"},
        "tick_ms": 20,
        **more,
    }
    if ssd is not None:
        config["ssd"] = {"bytes": "64 MiB", "segment_bytes": "4 MiB", "directory": str(folder / f"{node}-ssd"), **ssd}
    return config


def client_of(config: dict[str, Any], space: PageSpace = SPACE, settings: ClientSettings = PATIENT, **more: Any) -> PageClient:
    return PageClient(Path(config["socket"]), space, PortableCopier(1), settings, **more)


@asynccontextmanager
async def agent_here(config: dict[str, Any], epoch: int = 1) -> AsyncIterator[Agent]:
    """An agent in this process and loop; blocking clients belong in threads."""
    agent = Agent(parse_config(config), epoch)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(agent.run(stop, ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S)
    try:
        if running.done():
            running.result()
        yield agent
    finally:
        waiting.cancel()
        stop.set()
        await running


def peer_of(agent: Agent) -> Peer:
    return Peer(agent.config.node, "127.0.0.1", agent.port)


class AgentDidNotStart(Exception):
    """With its log."""


class AgentProcess:
    """`kill` is kill -9. `before` are the words of a command that runs the agent by `exec`."""

    def __init__(self, config: dict[str, Any], folder: Path, before: Sequence[str] = ()) -> None:
        self.config = config
        path = folder / f"{config['node']}.yaml"
        path.write_bytes(msgspec.yaml.encode(config))
        self.log = (folder / f"{config['node']}.log").open("ab")
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "kvtier.agent", str(path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.startswith("ready"):
            self.kill()
            raise AgentDidNotStart(Path(self.log.name).read_text())
        self.port = int(said.rpartition("=")[2])

    @property
    def peer(self) -> Peer:
        return Peer(self.config["node"], "127.0.0.1", self.port)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        self.process.terminate()
        return self.end()

    def end(self) -> int:
        status = self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return status


@contextmanager
def agent_process(config: dict[str, Any], folder: Path, before: Sequence[str] = ()) -> Iterator[AgentProcess]:
    agent = AgentProcess(config, folder, before)
    try:
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.kill()


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that tells nobody. For threads of their own."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.005)


async def eventually(true: Callable[[], object], what: str) -> None:
    """The same inside a loop."""
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
    assert true(), what
