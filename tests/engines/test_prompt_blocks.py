"""Counts and block ids of shortened recorded chats, salted and not, are those that running engines report and publish."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from pd_pair import CHAT, MODEL, Pair, Reply, send

from bench.replay.recording import Shortening
from costmodel.values import WorkerKey
from engine_adapters.adapters import adapter_for
from engine_adapters.base import Endpoint, EngineKind, EventFeed
from engine_adapters.launch.pool import Pool
from engine_adapters.launch.vllm import VllmSpec
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.state import PromptState
from engine_adapters.prompt.vllm_chat import VllmProfile
from engine_adapters.sglang.subscriber import Subscriber
from kvtier.hashing import vllm
from kvtier.hashing.chain import BlockChain
from kvtier.hashing.sglang import Chain, event_seed
from kvtier.index.memory import BlockIndex

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine_adapters" / "prompt"))

from chat_bodies import recorded  # noqa: E402

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
DEADLINE_S = 60.0
SALTS = (None, "tenant-a")
EXPECTED_TURNS = 2 * 115
KEPT = ("messages", "tools", "reasoning_effort", "chat_template_kwargs")
Ask = Callable[[dict[str, Any]], Awaitable[Reply]]


def shortened() -> list[list[dict[str, Any]]]:
    short = Shortening()
    return [[short.apply({name: body[name] for name in KEPT if name in body}) for body in bodies] for bodies in recorded(CHAT)]


async def compare(
    engine: EngineKind, feed: EventFeed, model: PromptModel, root_of: Callable[[str | None], BlockChain], ask: Ask
) -> tuple[int, int]:
    """Turns and blocks that were compared."""
    index, worker = BlockIndex(), WorkerKey("w")
    subscriber = Subscriber(feed, worker, index, adapter_for(engine).decode_events, lambda: time.monotonic() * 1000)
    task = asyncio.create_task(subscriber.run())
    turns = blocks = 0
    try:
        await until(lambda: subscriber.status.state == "live")
        for salt in SALTS:
            for bodies in shortened():
                state: PromptState | None = None
                for chat in bodies:
                    body = {"model": MODEL, "temperature": 0, "max_tokens": 1, **chat, **({"cache_salt": salt} if salt else {})}
                    reply = await ask(body)
                    assert reply.status == 200, reply.text
                    state = model.extend(state, msgspec.json.encode(body), root_of(salt))
                    assert reply.usage["prompt_tokens"] == state.tokens
                    await until(lambda ids=state.block_ids: held(index, worker, ids) == len(ids))
                    turns += 1
                    blocks += len(state.blocks)
        assert subscriber.status.unreadable == 0
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return turns, blocks


def held(index: BlockIndex, worker: WorkerKey, ids: Any) -> int:
    match = index.match(ids, 0.0).get(worker)
    return match.blocks if match else 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.01)


async def test_vllm_publishes_our_blocks(vllm_spec: VllmSpec, http: httpx.AsyncClient) -> None:
    model = PromptModel.open(MODEL_DIR, VllmProfile())

    async def ask(body: dict[str, Any]) -> Reply:
        return await send(http, vllm_spec.url + CHAT, msgspec.json.encode(body))

    def root_of(salt: str | None) -> BlockChain:
        return vllm.root(vllm_spec.block_size, cache_salt=salt)

    turns, blocks = await compare(EngineKind.VLLM, vllm_spec.event_feed, model, root_of, ask)
    assert turns == EXPECTED_TURNS
    assert blocks > 5000


async def test_sglang_publishes_our_blocks(pd_pool: Pool, http: httpx.AsyncClient) -> None:
    model = PromptModel.open(MODEL_DIR, SglangProfile())
    prefill, decode = pd_pool.prefills[0], pd_pool.decodes[0]
    pair = Pair(http, prefill.url, prefill.spec.bootstrap_port, decode.url, Random())
    (feed,) = (await adapter_for(EngineKind.SGLANG).discover(http, Endpoint(prefill.url))).event_feeds

    async def ask(body: dict[str, Any]) -> Reply:
        return (await pair.ask(CHAT, body))[1]

    def root_of(salt: str | None) -> BlockChain:
        return Chain(prefill.spec.page_size, digest=event_seed(salt))

    turns, blocks = await compare(EngineKind.SGLANG, feed, model, root_of, ask)
    assert turns == EXPECTED_TURNS
    assert blocks > 10_000
