"""Two real vLLM servers on one host, the agent between them, and a hand in that agent's memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec

from engine_adapters.launch.environments import ROOT
from engine_adapters.launch.pool import READY_DEADLINE_S, READY_PATH
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.vllm import VllmSpec, start_vllm
from engine_adapters.vllm_storage.plugin import connector_flags, write_plugin
from kvtier.client.channel import Channel
from kvtier.client.memory import SharedMemory
from kvtier.wire.messages import AskStats, Stats

MODEL = "tiny-agent"
BLOCK_TOKENS = 32
BLOCK_BYTES = 32_768  # 2 layers, keys and values, 2 heads of 64, bfloat16
BLOCKS = 512  # of each server's own
POOL_BYTES = 128 << 20
DEADLINE_S = 60.0
PATIENT = {"connect_s": 3, "look_s": 3, "get_s": 5, "put_s": 5, "retry_s": 0.5}  # the machine may be busy


class HostAgent:
    """The agent as a process. `freeze` stops it in the middle of whatever it does."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent.sock"
        self._config = folder / "agent.yaml"
        dram = {"bytes": POOL_BYTES, "slab_bytes": "1 MiB", "backing": "plain", "prefault": False}
        self._config.write_bytes(msgspec.yaml.encode({"node": "host", "socket": str(self.socket), "dram": dram}))
        self._log = (folder / "agent.log").open("ab")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvtier.agent", str(self._config)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready"), Path(self._log.name).read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._log.close()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def numbers(self) -> dict[str, float]:
        channel = Channel(self.socket, DEADLINE_S)
        try:
            reply = channel.ask(AskStats(), DEADLINE_S)
        finally:
            channel.close()
        assert isinstance(reply, Stats)
        return reply.numbers

    def flip_bits(self, rng: Random) -> None:
        """One bit of every block that may lie in the pool."""
        channel = Channel(self.socket, DEADLINE_S)
        memory = SharedMemory(channel.take_memory_fd(), channel.greeting.pool_bytes)
        channel.close()
        for start in range(0, memory.size, BLOCK_BYTES):
            memory.view(start + rng.randrange(BLOCK_BYTES), 1)[0] ^= 1 << rng.randrange(8)


@dataclass(frozen=True, slots=True)
class Told:
    text: str
    prompt_tokens: int
    cached_tokens: int


class VllmPair:
    def __init__(self, http: httpx.AsyncClient, agent: HostAgent, urls: tuple[str, str]) -> None:
        self.agent = agent
        self._http = http
        self._urls = urls

    async def ask(self, server: int, prompt: list[int], tokens: int = 24) -> Told:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        reply = await self._http.post(self._urls[server] + "/v1/completions", json=body)
        reply.raise_for_status()
        said: dict[str, Any] = reply.json()
        usage = said["usage"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        return Told(said["choices"][0]["text"], usage["prompt_tokens"], cached)

    async def stored(self, blocks: int, before: dict[str, float]) -> None:
        """So many more than `before` are at the agent: the engine waits for none of them."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self.numbers())["stored"] < before["stored"] + blocks:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.05)

    async def numbers(self) -> dict[str, float]:
        return await asyncio.to_thread(self.agent.numbers)


@asynccontextmanager
async def vllm_pair(model_dir: Path, folder: Path) -> AsyncIterator[VllmPair]:
    agent = HostAgent(folder)
    plugin = write_plugin(folder / "plugin.zip")
    flags = (*connector_flags(str(agent.socket), **PATIENT), "--num-gpu-blocks-override", str(BLOCKS))
    processes = []
    try:
        await asyncio.to_thread(agent.start)
        for _ in range(2):
            port, kv_port, replay_port = free_ports(3)
            spec = VllmSpec(
                model_dir, port, kv_port, replay_port, context_tokens=8192, extra_flags=flags, python_path=(plugin,)
            )
            processes.append(await start_vllm(spec, folder))
        for process in processes:
            await process.ready(READY_PATH, READY_DEADLINE_S)
        async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http:
            yield VllmPair(http, agent, (processes[0].url, processes[1].url))
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
        agent.close()
