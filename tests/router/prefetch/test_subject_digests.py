"""The whole digests of a thread's pages: of the prompt that it has now, made anew where they could not be made before."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from random import Random

import pytest
from emulated_site import MODEL, MODEL_DIR

from engine_adapters.base import EngineInfo
from kvtier.hashing.sglang import event_id
from router.body.scan import Scanner
from router.config.tree import Config
from router.dialects import CHAT
from router.gateway import Gateway
from router.prompts.reader import Ask
from router.threads.keys import ThreadHints
from router.threads.lineage import State

PAGE = 16
INFO = EngineInfo("sglang test", (MODEL,), page_size=PAGE)
TREE = {
    "pools": [{"models": [MODEL], "unified": [{"url": "http://127.0.0.1:1"}], "prompt": {"model_dir": str(MODEL_DIR)}}],
    "prefetch": {"mode": "enabled"},
}


class Talk:
    """One thread whose prompts are made by hand."""

    def __init__(self, gateway: Gateway) -> None:
        reader = gateway.extender.pools["default"].reader
        assert reader is not None
        self.reader, self.threads, self.subjects = reader, gateway.threads, gateway.prefetch.subjects
        self.scanner: Scanner[State] = Scanner(())

    def asks(self, text: str, thread: str = "") -> str:
        """Its thread; `thread`: the one that it continues, with another end."""
        messages = [{"role": "system", "content": "Be brief. " * 40}, {"role": "user", "content": text}]
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        thread = thread or self.threads.observe(self.scanner.scan(body, CHAT), ThreadHints(), 0.0).thread
        prompt = self.reader.extend(Ask(thread, None, "/v1/chat/completions", body, INFO, None))
        self.threads.extended(thread, prompt.blocks, prompt.page_size)
        return thread

    def blocks(self, thread: str) -> list[int]:
        known = self.threads.get(thread)
        assert known is not None
        return list(known.blocks)

    async def named(self, thread: str) -> list[int]:
        digests = await self.subjects.digests(thread, 0, 1 << 20)
        return [event_id(digests[at : at + 32]) for at in range(0, len(digests), 32)]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    gateway = Gateway(Config.model_validate(TREE), lambda: 1000.0, Random(1))
    yield Talk(gateway)
    await gateway.close()


async def test_what_could_not_be_made_is_made_when_its_ids_are_back(talk: Talk) -> None:
    thread = talk.asks("What now?")
    talk.reader.forget(thread)
    assert await talk.named(thread) == []
    assert talk.asks("What now?") == thread
    assert await talk.named(thread) == talk.blocks(thread) != []


async def test_another_prompt_of_the_same_length_has_other_digests(talk: Talk) -> None:
    thread = talk.asks("a " * 40)
    before = await talk.named(thread)
    talk.asks("b " * 40, thread)
    assert before != talk.blocks(thread)
    assert len(before) == len(talk.blocks(thread))
    assert await talk.named(thread) == talk.blocks(thread)
