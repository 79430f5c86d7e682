"""Bigram block ids against a running SGLang whose radix cache is told that an EAGLE draft model is there.

No draft model runs on a CPU (docs/tokenization.md says what was tried). So a plug-in sets the one flag of the engine's cache
that a draft model would: tree, hashes and events are the engine's own, as is everything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from pd_pair import CHAT, MODEL, send

from bench.deltatok.talk import Talk, library_text
from costmodel.values import WorkerKey
from engine_adapters.adapters import adapter_for
from engine_adapters.base import Endpoint, EngineKind
from engine_adapters.launch.pool import READY_DEADLINE_S, READY_PATH
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.sglang import SglangSpec, start_sglang
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.state import PromptState
from engine_adapters.sglang.subscriber import Subscriber
from kvtier.hashing.sglang import Chain, event_seed
from kvtier.index.memory import BlockIndex

MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
DEADLINE_S = 60.0
TURNS = 10
PLUGIN = """
def register():
    from sglang.srt.mem_cache import cache_init_params
    plain = cache_init_params.CacheInitParams.__init__
    def init(self, *values, **named):
        plain(self, *values, **{**named, "is_eagle": True})
    cache_init_params.CacheInitParams.__init__ = init
"""
pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def write_plugin(folder: Path) -> None:
    (folder / "loadback_bigram.py").write_text(PLUGIN)
    told = folder / "loadback_bigram-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: loadback-bigram\nVersion: 1\n")
    (told / "entry_points.txt").write_text("[sglang.srt.plugins]\nbigram = loadback_bigram:register\n")


@pytest_asyncio.fixture(loop_scope="session")
async def bigram_engine(tmp_path: Path) -> AsyncIterator[SglangSpec]:
    write_plugin(tmp_path)
    port, kv_port, replay_port = free_ports(3)
    spec = SglangSpec(model_dir=MODEL_DIR, port=port, kv_port=kv_port, replay_port=replay_port, python_path=(tmp_path,))
    process = await start_sglang(spec, tmp_path)
    try:
        await process.ready(READY_PATH, READY_DEADLINE_S)
        yield spec
    finally:
        await process.stop()


async def test_a_running_tree_of_bigrams_publishes_our_blocks(bigram_engine: SglangSpec, http: httpx.AsyncClient) -> None:
    spec, adapter = bigram_engine, adapter_for(EngineKind.SGLANG)
    model = PromptModel.open(MODEL_DIR, SglangProfile())
    (feed,) = (await adapter.discover(http, Endpoint(spec.url))).event_feeds
    index, worker = BlockIndex(), WorkerKey("w")
    subscriber = Subscriber(feed, worker, index, adapter.decode_events, lambda: time.monotonic() * 1000)
    task = asyncio.create_task(subscriber.run())
    blocks = 0
    state: PromptState | None = None
    try:
        for salt in (None, "tenant-a"):
            root = Chain(spec.page_size, True, event_seed(salt))
            talk, state = Talk(library_text(400_000)), None
            for _ in range(TURNS):
                state = await _turn(spec, http, model, state, talk, root, salt)
                await _held(index, worker, state)
                blocks += len(state.blocks)
                talk.grow(1_500)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert blocks > 2_000
    assert state is not None
    plain = Chain(spec.page_size).extend(state.exact_ids or ())[1]
    assert not index.match(plain, 0.0), "ids of single tokens are other ones"


async def _turn(
    spec: SglangSpec,
    http: httpx.AsyncClient,
    model: PromptModel,
    state: PromptState | None,
    talk: Talk,
    root: Chain,
    salt: str | None,
) -> PromptState:
    body: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 1, "messages": talk.messages, "tools": talk.tools}
    sent = msgspec.json.encode(body | ({"cache_salt": salt} if salt else {}))
    reply = await send(http, spec.url + CHAT, sent)
    assert reply.status == 200, reply.text
    state = model.extend(state, sent, root)
    assert reply.usage["prompt_tokens"] == state.tokens
    return state


async def _held(index: BlockIndex, worker: WorkerKey, state: PromptState) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (match := index.match(state.block_ids, 0.0).get(worker)) is None or match.blocks < len(state.blocks):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
