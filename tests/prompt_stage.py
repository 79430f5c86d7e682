"""A gateway with a tokenizer in front of two emulated workers, all in the test's own loop.

Their KV events are followed unless `index` says otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
from emulated_site import MODEL, MODEL_DIR, emulated_engine, gateway_client, until

from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.worker.worker import Worker
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.prompts.pool_prompts import PoolPrompts
from router.turn.record import TurnRecord

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PORTS = (19700, 19899)
Json = dict[str, Any]
_PARAMS = EngineParams(speed=1000.0, kv_tokens=65_536, context_tokens=32_768, page_tokens=16)


@dataclass(slots=True)
class PromptStage:
    gateway: Gateway
    engines: list[Worker]
    http: httpx.AsyncClient

    @property
    def prompts(self) -> PoolPrompts:
        return self.gateway.extender.pools["default"]

    @property
    def fallbacks(self) -> dict[str, int]:
        return dict(self.prompts.counts.fallbacks)

    @property
    def compared(self) -> dict[tuple[str, str], int]:
        return dict(self.prompts.counts.compared)

    async def turn(self, body: Json, path: str = CHAT, key: str | None = None) -> TurnRecord:
        """Serve one request, and wait until all that its prompt sets off is done. `key` names the client's thread."""
        headers = {"x-session-id": key} if key else {}
        reply = await self.http.post(path, json={"model": MODEL, "max_tokens": 4, **body}, headers=headers)
        assert reply.status_code == 200, reply.text
        await until(lambda: self.quiet, "prompts settled")
        return self.gateway.turns.records.newest(1)[0]

    @property
    def quiet(self) -> bool:
        return not self.gateway.extender.busy

    def thread(self, record: TurnRecord) -> Any:
        return self.gateway.threads.get(record.thread)


def talk(turns: int, *, topic: str = "disk", lines: int = 6) -> list[Json]:
    """A system prompt, and a user who asks again and again."""
    messages: list[Json] = [{"role": "system", "content": f"You help with {topic}.\n" + "Rule: be brief and exact.\n" * lines}]
    for number in range(turns):
        if number:
            messages.append({"role": "assistant", "content": f"Answer {number} on {topic}. " * lines})
        messages.append({"role": "user", "content": f"Question {number} on {topic}?\n" * lines})
    return messages


@asynccontextmanager
async def prompt_stage(prompt: Json | None = None, workers: int = 2, **sections: Any) -> AsyncIterator[PromptStage]:
    async with AsyncExitStack() as exits:
        engines = [
            await exits.enter_async_context(emulated_engine(_PARAMS, ReplyStyle(tool_rounds=0), PORTS)) for _ in range(workers)
        ]
        pool = {
            "unified": [{"url": url, "name": f"u{index}"} for index, (_, url) in enumerate(engines)],
            "prompt": {"model_dir": str(MODEL_DIR), "cold_deadline_ms": 0, **(prompt or {})},
        }
        polls = {"discover_s": 0.02, "loads_ms": 60_000}
        config = Config.model_validate({"polls": polls, "seed": 1, "pools": [pool], **sections})
        gateway = Gateway(config, system_clock, Random(1))
        http = await exits.enter_async_context(gateway_client(gateway))
        if config.index.kv_events:
            await until(lambda: _live_feeds(gateway) == workers, "events followed")
        yield PromptStage(gateway, [worker for worker, _ in engines], http)


def _live_feeds(gateway: Gateway) -> int:
    workers = gateway.fleet.workers
    return sum(feed.state == "live" for worker in workers for feed in gateway.monitor.feeds(worker.worker_id))
