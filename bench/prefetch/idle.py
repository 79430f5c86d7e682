"""What a gateway's awaited threads cost while they idle: a real gateway's planner and view, threads with prompts in the index,
a quiet fleet, and the processor time of the whole process."""

from __future__ import annotations

import asyncio
import time
from array import array
from random import Random
from typing import Any

import msgspec

from costmodel.values import Tier, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.index.events import BlocksStored
from kvtier.prefetch.events import Ended
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.wire.request import HotRequest

_PAGE_TOKENS = 64
_PROMPT_PAGES = 1_600  # about 100k tokens
_TOOLS = ("bash", "edit", "read", "search", "")
_WORKER = WorkerKey("u0")
_PATH = "/v1/chat/completions"


class Idle(msgspec.Struct, frozen=True):
    """Processor time of the whole process over `seconds`, and of the same gateway with no threads.

    It does not grow with `seconds`: a thread is looked at when its gap has doubled, so that the first second costs as much as
    the last half of a minute. Shares of a core are therefore of this very time.
    """

    threads: int
    seconds: float
    cpu_ms: float
    empty_cpu_ms: float
    core_share: float  # what the threads add
    looked_at: int  # times that the cost model was asked where a thread would go
    planner_bytes: int  # of Python's allocator, for all threads


class _Counted:
    """The gateway's view, counting how often it is asked."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.asked = 0

    def target(self, subject: str, worker: WorkerKey | None) -> Any:
        self.asked += 1
        return self._view.target(subject, worker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


async def measure_idle(threads: int, seconds: float) -> Idle:
    """Takes twice `seconds`: first without threads, then with."""
    empty_s, _, _ = await _spent(0, seconds)
    spent_s, asked, size = await _spent(threads, seconds)
    share = max(0.0, spent_s - empty_s) / seconds
    return Idle(threads, seconds, 1000 * spent_s, 1000 * empty_s, share, asked, size)


async def _spent(threads: int, seconds: float) -> tuple[float, int, int]:
    """Processor seconds, how often the cost model was asked, and the planner's bytes."""
    gateway = _gateway()
    try:
        prefetcher = gateway.prefetch.prefetcher
        view = _Counted(prefetcher._view)
        prefetcher._view = view
        size = _fill(gateway, threads)
        prefetcher.start()
        await asyncio.sleep(0.5)  # the ends of their turns are told
        view.asked = 0
        spent = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - spent, view.asked, size
    finally:
        await gateway.close()


def _gateway() -> Gateway:
    pool = {"models": ["m"], "unified": [{"url": f"http://127.0.0.1:{port}", "name": f"u{port - 1}"} for port in (1, 2, 3)]}
    config = Config.model_validate({"pools": [pool], "seed": 1, "prefetch": {"mode": "enabled"}})
    gateway = Gateway(config, system_clock, Random(1))
    for worker in gateway.fleet.workers:
        worker.discovered(EngineInfo("sglang", ("m",), page_size=_PAGE_TOKENS))
    return gateway


def _fill(gateway: Gateway, threads: int) -> int:
    """Threads whose turn has just ended after a tool call, their KV where it was computed. The planner's bytes, about."""
    import tracemalloc

    rng, blocks = Random(2), gateway.fleet.pools["default"].blocks
    names = [_thread(gateway, number) for number in range(threads)]
    for number, name in enumerate(names):
        hashes = array("q", (rng.getrandbits(63) for _ in range(_PROMPT_PAGES)))
        gateway.threads.extended(name, hashes, _PAGE_TOKENS)
        if number < 1_000:
            blocks.apply(_WORKER, BlocksStored(tuple(hashes), None, Tier.L1, _PAGE_TOKENS), system_clock())
    tracemalloc.start()
    for name in names:
        gateway.prefetch.prefetcher.tell(Ended(name, _WORKER, rng.choice(_TOOLS), "bench"))
    gateway.prefetch.prefetcher._work()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def _thread(gateway: Gateway, number: int) -> str:
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": f"Task {number}."}]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    request = HotRequest("POST", _PATH, b"", [(b"x-session-id", b"%d" % number)], body, None, None)  # type: ignore[arg-type]
    thread = gateway.turns.open(request).sighting.thread
    gateway.threads.committed(thread, _WORKER, _WORKER, system_clock())
    return thread
