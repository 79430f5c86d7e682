"""What agents tell of the bytes that they moved is believed as far as it can be."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapters.base import EngineInfo
from kvtier.agent.stager import StageState
from kvtier.prefetch.moves import Stage
from kvtier.prefetch.view import Path
from router.config.tree import Config
from router.fleet.pool import Pool
from router.gateway import Gateway
from router.prefetch.build import Prefetch
from router.prefetch.kv_bytes import KvBytes
from router.prefetch.node_agents import StageProgress, Ticket
from router.prefetch.subjects import named_by_ids

PAGE = 16
TOKENS = 4 * PAGE
FROM_B = Path("b", "a")


def gateway_of(now_ms: list[float], **hardware: float) -> Gateway:
    pool = {"models": ["m"], "unified": [{"url": "http://127.0.0.1:1", "node": "a"}], "hardware": hardware}
    tree = {"pools": [pool], "prefetch": {"mode": "enabled"}}
    return Gateway(Config.model_validate(tree), lambda: now_ms[0], Random(1))


def pool_of(gateway: Gateway) -> Pool:
    return gateway.fleet.pools["default"]


@dataclass
class Telling:
    """Agents at which everything is staged within a second, with so many bytes moved as they say."""

    now_ms: list[float]
    moved_bytes: int = 0
    there: int = 0

    async def stage(self, *_: Any) -> Ticket:
        return Ticket("a", 1, ((1,),), self.there)

    async def progress(self, ticket: Ticket) -> StageProgress:
        self.now_ms[0] += 1_000.0
        return StageProgress(True, StageState.READY, TOKENS // PAGE, self.moved_bytes)


async def staged(prefetch: Prefetch, subject: str) -> None:
    executor = prefetch.prefetcher.executor
    executor.execute([Stage(1, 1, subject, FROM_B, 0, TOKENS, TOKENS, 1e9, 1.0)])
    while executor.running:
        (task,) = executor._moves.values()
        await task


def named_in(gateway: Gateway) -> str:
    info = EngineInfo("sglang test", ("m",), page_size=PAGE)
    named = named_by_ids(pool_of(gateway), info, array("I", range(TOKENS)), None)
    return gateway.prefetch.subjects.named.add(named, lambda _: True)


async def test_a_stage_that_found_pages_there_tells_no_size() -> None:
    gateway = gateway_of(now_ms := [1000.0], kv_bytes_per_token=1_000.0)
    executor, subject = gateway.prefetch.prefetcher.executor, named_in(gateway)
    executor._agents = agents = Telling(now_ms, 1_000 * PAGE, there=3)  # type: ignore[assignment]
    await staged(gateway.prefetch, subject)
    assert executor._kv_bytes.of(pool_of(gateway)) == 1_000.0
    agents.there, agents.moved_bytes = 0, 900 * TOKENS
    await staged(gateway.prefetch, subject)
    assert executor._kv_bytes.of(pool_of(gateway)) == 900.0
    await gateway.close()


@pytest.mark.parametrize("told", [-1, -(10**15), 10**15])
async def test_a_size_that_cannot_be_teaches_nothing(told: int) -> None:
    gateway = gateway_of(now_ms := [1000.0])
    prefetch, pool, subject = gateway.prefetch, pool_of(gateway), named_in(gateway)
    executor = prefetch.prefetcher.executor
    executor._agents = agents = Telling(now_ms, told)  # type: ignore[assignment]
    links, sizes = executor._links, executor._kv_bytes
    before = (links.state(FROM_B), sizes.of(pool))
    with capture_logs() as logs:
        await staged(prefetch, subject)
        await staged(prefetch, subject)
    assert (links.state(FROM_B), sizes.of(pool), sizes.known(pool)) == (*before, False)
    assert [line["event"] for line in logs if line["event"] == "prefetch_size_refused"] == ["prefetch_size_refused"]
    assert executor.sizes_refused == 2
    agents.moved_bytes = 1_000 * TOKENS
    await staged(prefetch, subject)
    assert (sizes.of(pool), sizes.known(pool), executor.sizes_refused) == (1_000.0, True, 2)
    assert links.state(FROM_B) != before[0]
    await gateway.close()


async def test_a_default_is_no_knowledge() -> None:
    for hardware, known in (({}, False), ({"kv_bytes_per_token": 70_272.0}, True)):
        gateway = gateway_of([1000.0], **hardware)
        assert KvBytes().known(pool_of(gateway)) is known
        await gateway.close()


async def test_the_largest_of_the_last_ones_counts_and_nothing_that_moved_nothing() -> None:
    gateway = gateway_of([1000.0])
    sizes, pool = KvBytes(), pool_of(gateway)
    for moved in (0, 100, 300, 200):
        sizes.staged(pool, 10, moved)
    assert sizes.of(pool) == 30.0
    for _ in range(8):
        sizes.staged(pool, 10, 100)
    assert sizes.of(pool) == 10.0
    await gateway.close()
