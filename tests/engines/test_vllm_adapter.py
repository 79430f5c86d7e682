"""What the vLLM adapter claims, on a real server: a plain OpenAI pool with load and KV events."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec
import pytest
from pd_pair import CHAT, MODEL, Reply, body_for, send, splice

from costmodel.values import Role, WorkerKey
from engine_adapters.adapters import adapter_for, detect
from engine_adapters.base import Edit, Endpoint, EngineKind, ReplyFacts
from engine_adapters.launch.vllm import VllmSpec
from engine_adapters.sglang.subscriber import Subscriber
from kvtier.index.memory import BlockIndex

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

VLLM = adapter_for(EngineKind.VLLM)
DEADLINE_S = 60.0


def facts(reply: Reply) -> ReplyFacts:
    return VLLM.facts(msgspec.json.encode(reply.usage), None)


async def ask(http: httpx.AsyncClient, spec: VllmSpec, prompt: str, *, tokens: int = 4, stream: bool = False) -> Reply:
    body = body_for(CHAT, prompt, tokens=tokens, stream=stream)
    return await send(http, spec.url + CHAT, splice(body, VLLM.members(Edit(CHAT, stream=stream, rid="r"))))


async def test_discovery_and_load(vllm_spec: VllmSpec, http: httpx.AsyncClient) -> None:
    endpoint = Endpoint(vllm_spec.url)
    assert await detect(http, endpoint) is EngineKind.VLLM
    info = await VLLM.discover(http, endpoint)
    assert (info.models, info.role, info.page_size) == ((MODEL,), Role.UNIFIED, 32)
    assert info.engine.startswith("vllm 0.")
    assert info.kv_tokens_capacity > 0
    (load,) = await VLLM.read_loads(http, endpoint)
    assert (load.dp_rank, load.kv_tokens_capacity) == (0, info.kv_tokens_capacity)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_served_twice_reports_cached_tokens(vllm_spec: VllmSpec, http: httpx.AsyncClient, stream: bool) -> None:
    prompt = f"v{time.monotonic_ns()} " * 100
    await ask(http, vllm_spec, prompt, stream=stream)
    told = facts(await ask(http, vllm_spec, prompt, stream=stream))
    assert told.prompt_tokens > 100
    assert told.cached_tokens == told.prompt_tokens // 32 * 32


async def test_events_are_followed(vllm_spec: VllmSpec, http: httpx.AsyncClient) -> None:
    index = BlockIndex()
    clock = time.monotonic
    subscriber = Subscriber(vllm_spec.event_feed, WorkerKey("v"), index, VLLM.decode_events, lambda: clock() * 1000)
    task = asyncio.create_task(subscriber.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while subscriber.status.state != "live":  # noqa: ASYNC110 - an engine tells nobody
                await asyncio.sleep(0.05)
            before = index.entries
            reply = await ask(http, vllm_spec, f"v{time.monotonic_ns()} " * 200)
            expected = facts(reply).prompt_tokens // 32 - (facts(reply).cached_tokens or 0) // 32
            while index.entries < before + expected:  # noqa: ASYNC110 - an engine tells nobody
                await asyncio.sleep(0.05)
        assert subscriber.status.unreadable == 0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_connection_that_closes_stops_the_request(vllm_spec: VllmSpec, http: httpx.AsyncClient) -> None:
    async def running() -> int:
        return sum(load.running_requests for load in await VLLM.read_loads(http, Endpoint(vllm_spec.url)))

    asked = asyncio.create_task(ask(http, vllm_spec, "w " * 12_000, tokens=4000, stream=True))
    async with asyncio.timeout(DEADLINE_S):
        while not await running() and not asked.done():  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.02)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        while await running():  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.05)
