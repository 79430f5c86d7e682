"""Derived prompts through the gateway on real engines: ids sent to SGLang change nothing but time, vLLM is placed by blocks."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from gateway_fixture import pd_pool_yaml, running_gateway
from pd_pair import CHAT, MESSAGES, MODEL, RESPONSES, Pair

from bench.deltatok.dialects import body_of
from bench.deltatok.talk import Talk, library_text
from engine_adapters.launch.pool import Pool, Server
from engine_adapters.launch.vllm import VllmSpec
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from kvtier.hashing.sglang import Chain

MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
TURNS = 6
CONTEXT_CHARS = 60_000
LIMITS = {MESSAGES: {"max_tokens": 4}, RESPONSES: {"max_output_tokens": 4}}
MEASURED = 7
Json = dict[str, Any]
pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def bodies() -> list[Json]:
    """Turns of one agent, tools and all, and one of another with a system prompt of its own."""
    found: list[Json] = []
    for start, chars in ((0, 3_000), (200_000, 8_000)):
        talk = Talk(library_text(600_000)[start:])
        for _ in range(TURNS // 2):
            found.append(
                {"model": MODEL, "temperature": 0, "max_tokens": 12, "messages": list(talk.messages), "tools": talk.tools}
            )
            talk.grow(chars)
    return found


async def served(base_url: str, sent: Sequence[Json]) -> list[tuple[str, Json, Json]]:
    """Text, usage and tool calls of each reply."""
    replies = []
    async with httpx.AsyncClient(base_url=base_url, timeout=120, trust_env=False) as client:
        for body in sent:
            reply = await client.post(CHAT, json=body)
            assert reply.status_code == 200, reply.text
            choice = reply.json()["choices"][0]
            replies.append((choice["message"]["content"], reply.json()["usage"], choice["finish_reason"]))
    return replies


async def served_as(base_url: str, path: str) -> None:
    """Turns of one agent in another protocol."""
    talk = Talk(library_text(600_000)[400_000:])
    async with httpx.AsyncClient(base_url=base_url, timeout=120, trust_env=False) as client:
        for _ in range(TURNS):
            body = json.loads(body_of(talk, path, []))
            reply = await client.post(path, json={**body, "model": MODEL, "temperature": 0, **LIMITS[path]})
            assert reply.status_code == 200, reply.text
            talk.grow(2_000)


async def prompts_of(base_url: str) -> Json:
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        shown: Json = (await client.get("/admin/index")).json()["pools"][0]["prompts"]
        return shown


async def cached_of(base_url: str, count: int) -> list[int]:
    """What prefill had in its cache, by its own reply, turn by turn."""
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        decisions = (await client.get("/admin/decisions", params={"limit": count})).json()["decisions"]
    return [decision["actual"]["cached_tokens"] for decision in decisions]


async def flush(pool: Pool) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for server in (pool.prefills[0], pool.decodes[0]):
            (await client.post(f"{server.url}/flush_cache?timeout=30")).raise_for_status()


async def test_forwarded_ids_give_the_same_text_and_the_same_cache_hits(pd_pool: Pool, tmp_path: Path) -> None:
    workers = pd_pool_yaml([pd_pool.prefills[0].url], [pd_pool.decodes[0].url])
    sent = bodies()
    found = []
    for forward in (False, True):
        await flush(pd_pool)
        prompt = {"model_dir": str(MODEL_DIR), "forward_ids": forward, "cold_deadline_ms": 5000.0, "verify_every": 1000}
        folder = tmp_path / str(forward)
        folder.mkdir()
        async with running_gateway({**workers, "prompt": prompt}, folder) as url:
            replies = await served(url, sent)
            shown = await prompts_of(url)
            found.append((replies, await cached_of(url, len(sent))))
            # Not a thread's first turn, nor what came before the model's first verification, which nobody waits for.
            assert len(sent) - 4 <= shown["forwarded"] <= len(sent) - 2 if forward else shown["forwarded"] == 0
            assert shown["fallbacks"] == {}
            assert all(model["mismatches"] == 0 for model in shown["models"])
    assert found[0] == found[1]
    assert sum(found[0][1]) > 0


def front_cpu_ms(servers: Sequence[Server]) -> float:
    """CPU time of the servers' own processes: HTTP, templates and tokenizers. Their schedulers are processes of their own."""
    fields = [Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split() for server in servers]
    return sum(int(field[11]) + int(field[12]) for field in fields) * 1000 / os.sysconf("SC_CLK_TCK")


async def test_what_forwarding_saves(pd_pool: Pool, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    """CPU of both servers' front ends for one turn, with its text and with its ids. Told, not judged."""
    prefill, decode = pd_pool.prefills[0], pd_pool.decodes[0]
    pair = Pair(http, prefill.url, prefill.spec.bootstrap_port, decode.url, Random())
    talk = Talk(library_text(600_000))
    while talk.chars < CONTEXT_CHARS:
        talk.grow(3_000)
    body = {"model": MODEL, "temperature": 0, "max_tokens": 1, "messages": talk.messages, "tools": talk.tools}
    state = PromptModel.open(MODEL_DIR, SglangProfile()).extend(None, json.dumps(body).encode(), Chain(16))
    added: dict[str, Json] = {"text": {}, "ids": {"input_ids": list(state.exact_ids or ())}}
    spent: dict[str, list[float]] = {name: [] for name in added}
    for _ in range(MEASURED):
        for name, members in added.items():
            before = front_cpu_ms((prefill, decode))
            _, reply = await pair.ask(CHAT, {**body, **members})
            spent[name].append(front_cpu_ms((prefill, decode)) - before)
            assert reply.usage["prompt_tokens"] == state.tokens
    with capsys.disabled():
        told = ", ".join(f"{name} {statistics.median(values):.0f} ms" for name, values in spent.items())
        print(f"\n{state.tokens} tokens, CPU of both front ends, median of {MEASURED}: {told}")


async def test_vllm_is_placed_by_blocks(vllm_spec: VllmSpec, tmp_path: Path) -> None:
    worker = {
        "url": vllm_spec.url,
        "name": "v0",
        "kv_events": vllm_spec.event_feed.address,
        "kv_replay": vllm_spec.event_feed.replay_address,
    }
    pool: dict[str, object] = {
        "engine": "vllm",
        "unified": [worker],
        "prompt": {"model_dir": str(MODEL_DIR), "verify_every": 2, "cold_deadline_ms": 5000.0},
    }
    sent = bodies()
    async with running_gateway(pool, tmp_path) as url:
        for path in (MESSAGES, RESPONSES):
            await served_as(url, path)
        await served(url, sent)
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=url, trust_env=False) as client:
            while (await prompts_of(url))["pending"]:  # noqa: ASYNC110 - a process of its own
                await asyncio.sleep(0.05)
            shown = await prompts_of(url)
            decisions = (await client.get("/admin/decisions", params={"limit": len(sent)})).json()["decisions"]
        models = {model["path"]: model for model in shown["models"]}
        assert set(models) == {CHAT, MESSAGES, RESPONSES}
        for path, model in models.items():
            assert (model["state"], model["mismatches"]) == ("exact", 0)
            assert model["agreed"] == (len(sent) if path == CHAT else TURNS)
        assert models[CHAT]["verified"] >= 1
        assert shown["fallbacks"] == {}
    later = [decision for decision in decisions if not decision["first_call"]]
    assert later
    for decision in later:
        promised, actual = decision["predicted_cached_tokens"], decision["actual"]["cached_tokens"]
        assert 0 < promised <= actual + vllm_spec.block_size, "what its events say is what it had"
