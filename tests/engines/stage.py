"""A prefill and a decode server to probe, real or emulated, with all that a probe may want of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import zmq
import zmq.asyncio
from pd_pair import MODEL, SGLANG, Pair

from engine_adapters.base import Endpoint, EventFeed, LoadReport
from engine_adapters.launch.pool import READY_PATH, launch_pd_pool
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import EngineProcess, start_process
from engine_adapters.launch.sglang import SglangSpec
from engine_adapters.sglang.frames import EndOfReplay, Frame, replay_frame, replay_request
from kvtier.index.events import BlockEvent

PAGE = 16
KV_TOKENS = 16_384
HOST_KV_TOKENS = 32_768
CONTEXT_TOKENS = 16_000
CHUNK_TOKENS = 2048
MAX_RUNNING = 16
SETTLE_S = 0.4
DEADLINE_S = 60.0


@dataclass(slots=True)
class Stage:
    """`prefill_feed` and `decode_feed` are asked for replays; `restart_prefill` ends and starts the prefill server."""

    pair: Pair
    prefill_feed: EventFeed
    decode_feed: EventFeed
    restart_prefill: Callable[[], Awaitable[None]]
    dead_bootstrap_port: int  # nobody listens there

    @property
    def http(self) -> httpx.AsyncClient:
        return self.pair.http

    async def fresh(self) -> None:
        """Empty caches on idle servers."""
        await self.idle()
        await self.pair.flush()
        await self.idle()

    async def idle(self) -> None:
        """Nothing runs or waits, and figures have stopped moving."""
        async with asyncio.timeout(DEADLINE_S):
            before = None
            while await self.pair.busy() or before != (before := await self._figures()):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(SETTLE_S)

    async def _figures(self) -> tuple[int, ...]:
        frames = [await replayed(feed) for feed in (self.prefill_feed, self.decode_feed)]
        loads = await self.loads(self.pair.prefill)
        return (*map(len, frames), loads[0].prefill_uncached_tokens_total or 0)

    async def loads(self, endpoint: Endpoint) -> tuple[LoadReport, ...]:
        return tuple(await SGLANG.read_loads(self.http, endpoint))


async def replayed(feed: EventFeed, first: int = 0) -> list[Frame]:
    """All batches that a publisher still has from number `first` on."""
    assert feed.replay_address is not None
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    frames: list[Frame] = []
    try:
        socket.connect(feed.replay_address)
        await socket.send_multipart(replay_request(first))
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(frame := replay_frame(await socket.recv_multipart()), EndOfReplay):
                assert frame is not None
                frames.append(frame)
    finally:
        context.destroy(linger=0)
    return frames


def events_in(frames: Sequence[Frame]) -> list[BlockEvent]:
    return [event for frame in frames for event in SGLANG.decode_events(frame.payload).events]


@asynccontextmanager
async def real_stage(model_dir: Path, log_dir: Path) -> AsyncIterator[Stage]:
    """Real SGLang 1P1D with caches small enough to fill."""
    base = SglangSpec(
        model_dir=model_dir,
        port=0,
        kv_port=0,
        replay_port=0,
        kv_tokens=KV_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
        max_running=MAX_RUNNING,
    )
    (dead,) = free_ports(1)
    async with launch_pd_pool(model_dir, log_dir, prefills=1, decodes=1, base=base) as running, http_client() as http:
        prefill, decode = running.prefills[0], running.decodes[0]
        pair = Pair(http, prefill.url, prefill.spec.bootstrap_port, decode.url, Random(1))
        yield await _stage(pair, prefill.restart, dead)


@asynccontextmanager
async def emulated_stage(model_dir: Path, log_dir: Path) -> AsyncIterator[Stage]:
    """The emulator with the same settings, each worker a process of its own."""
    dead, *ports = free_ports(9)
    workers = [
        EmulatedWorker("prefill", model_dir, log_dir, ports[:4]),
        EmulatedWorker("decode", model_dir, log_dir, ports[4:]),
    ]
    try:
        for worker in workers:
            await worker.start()
        async with http_client() as http:
            prefill, decode = workers
            yield await _stage(Pair(http, prefill.url, prefill.bootstrap_port, decode.url, Random(1)), prefill.restart, dead)
    finally:
        for worker in workers:
            await worker.stop()


class EmulatedWorker:
    """One emulator process."""

    def __init__(self, role: str, model_dir: Path, log_dir: Path, ports: list[int]) -> None:
        self._role = role
        self._model_dir = model_dir
        self._log = log_dir / f"emulated-{role}.log"
        self._port, self._kv_port, self._replay_port, self.bootstrap_port = ports
        self._process: EngineProcess | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        flags = {
            "--role": self._role,
            "--port": self._port,
            "--kv-port": self._kv_port,
            "--kv-replay-port": self._replay_port,
            "--bootstrap-port": self.bootstrap_port,
            "--served-model-name": MODEL,
            "--model-dir": self._model_dir,
            "--page-size": PAGE,
            "--context-length": CONTEXT_TOKENS,
            "--kv-tokens": KV_TOKENS,
            "--l2-tokens": HOST_KV_TOKENS if self._role == "prefill" else 0,
            "--chunked-prefill-size": CHUNK_TOKENS,
            "--max-running-requests": MAX_RUNNING,
            "--prefill-ms-per-token": 0.2,  # slow enough to abort in mid-prefill
        }
        words = [str(word) for pair in flags.items() for word in pair]
        keeps = ["--decode-radix-cache"] if self._role == "decode" else []
        command = [sys.executable, "-m", "engine_adapters.emulator", *words, *keeps]
        self._process = await start_process(f"emulated {self._role}", self.url, command, {}, self._log)
        await self._process.ready(READY_PATH, DEADLINE_S)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http:
        yield http


async def _stage(pair: Pair, restart: Callable[[], Awaitable[None]], dead: int) -> Stage:
    feeds = [(await SGLANG.discover(pair.http, endpoint)).event_feeds[0] for endpoint in (pair.prefill, pair.decode)]
    return Stage(pair, feeds[0], feeds[1], restart, dead)
