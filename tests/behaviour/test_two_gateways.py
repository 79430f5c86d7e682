"""Two gateways before the same engines share a Redis: a session that moves finds its worker, and Redis may die meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_engine import MODEL
from gateway_stage import PLAIN, Stage, StageMaker, serve_gateway
from raw_client import ask, send
from redis_rig import RedisServer
from waiting import until

from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway

pytestmark = pytest.mark.slow
LONG = "many words of a system prompt " * 400


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
async def pair(make_stage: StageMaker, redis_server: RedisServer) -> AsyncIterator[tuple[Stage, int]]:
    """A stage, and the port of a second gateway before its engines."""
    index = {"redis": {"urls": [redis_server.url], "deadline_ms": 1000, "retry_ms": 1}}
    policy = {"never_used_first": True, "near_tie_ms": 0}
    stage = await make_stage(PLAIN, workers=3, index=index, policy=policy)
    tree = stage.gateway.config.model_dump()
    async with AsyncExitStack() as exits:
        second = Gateway(Config.model_validate({**tree, "seed": 2}), system_clock, Random(2))
        server = await serve_gateway(exits, second)
        yield stage, server.port


def conversation(number: int, turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": f"{number} {LONG}"}]
    for turn in range(turns):
        messages += [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": f"answer {turn}"}]
    return {"model": MODEL, "messages": [*messages, {"role": "user", "content": "go on"}]}


async def served_by(port: int, body: dict[str, Any]) -> str:
    call = await ask(port, body)
    assert call.status == 200
    return str(call.headers["x-loadback-worker"])


async def shared(stage: Stage) -> None:
    (sharer,) = stage.gateway.sharing.sharers.values()
    await until(lambda: sharer.counters.flushes > 0 and not len(sharer.outbox), "everything shared")


async def test_a_session_that_moves_finds_its_worker(pair: tuple[Stage, int]) -> None:
    stage, second = pair
    first_seen = {number: await served_by(stage.port, conversation(number, 0)) for number in range(6)}
    assert len(set(first_seen.values())) > 1, "sessions spread over the workers"
    await shared(stage)
    assert {number: await served_by(second, conversation(number, 1)) for number in range(6)} == first_seen
    metrics = (await (await send(second, b"", "/metrics", method="GET")).finish()).body.decode()
    assert 'loadback_shared_recalls_total{outcome="new",pool="default"} 6.0' in metrics


async def test_turns_are_served_while_redis_is_dead_and_what_was_learned_is_told_after(
    pair: tuple[Stage, int], redis_server: RedisServer
) -> None:
    stage, second = pair
    await served_by(stage.port, conversation(0, 0))
    redis_server.kill()
    lost = await served_by(stage.port, conversation(1, 0))
    await served_by(second, conversation(2, 0))
    redis_server.start()
    (sharer,) = stage.gateway.sharing.sharers.values()
    flushes = sharer.counters.flushes
    await until(lambda: sharer.counters.flushes > flushes, "shared again")
    assert await served_by(second, conversation(1, 1)) == lost


@pytest.mark.parametrize("field", ["junk", '["w","zz",0]'])
async def test_a_row_that_nobody_can_read_costs_sharing_and_no_turn(
    pair: tuple[Stage, int], redis_server: RedisServer, field: str
) -> None:
    stage, second = pair
    await served_by(stage.port, conversation(0, 0))
    with redis_server.client() as client:
        await until(lambda: client.keys("*sources*"), "the first source named")
        client.hset(client.keys("*sources*")[0], field, "garbage")
    for port in (stage.port, second):
        await served_by(port, conversation(1, 0))
    (sharer,) = stage.gateway.sharing.sharers.values()
    await until(lambda: sharer.counters.flushes_failed > 0, "the writer has met it")
    assert sharer.counters.crashes == 0
