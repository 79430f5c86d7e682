"""Emulated workers that share a real node agent's pool: pages of real bytes go in and come back, checked, or not at all."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from emulator_pool import FAST, Emulated, unified

from bench.reach.node import NodeAgent
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.pool import Done, Reading
from engine_adapters.emulator.model.request import SHARED, EngineRequest, Namespace
from engine_adapters.emulator.worker.agent_pool import AgentPool, page_content
from kvtier.client.copier import PortableCopier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.hashing.sglang import Chain
from kvtier.page.space import PageSpace

CHAT = "/v1/chat/completions"
PAGE, TOKEN_BYTES = 16, 256
SMALL = msgspec.structs.replace(FAST, kv_bytes_per_token=TOKEN_BYTES, host_kv_tokens=65_536)
LONG = " ".join(f"word{number}" for number in range(400))
DEADLINE_S = 20.0
PATIENT = ClientSettings(connect_s=5, look_s=5, get_s=5, put_s=5)


def body(text: str = LONG, **members: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 4, "return_cached_tokens_details": True, **members}


class Delayed:
    """A pool whose reads end when the test says so."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.written: list[tuple[tuple[int, ...], Namespace, int]] = []

    def read(self, hashes: Any, namespace: Namespace, least: int, now_ms: float, done: Done) -> Reading | None:
        self.done.append(done)
        return None

    def write(self, hashes: Any, namespace: Namespace, depth: int, now_ms: float) -> None:
        self.written.append((tuple(hashes), namespace, depth))


def run(model: EngineModel) -> list[Any]:
    told = []
    while (due := model.next_event_ms()) is not None:
        told += model.advance(due)
    return told


def request(rid: str, pages: range, output: int = 2) -> EngineRequest:
    return EngineRequest(rid, PAGE * len(pages), output, output, tuple(pages))


def test_a_read_whose_end_nobody_knows_keeps_its_request_waiting_and_lets_others_go_ahead() -> None:
    pool = Delayed()
    model = EngineModel(SMALL, pool)
    model.submit(request("long", range(64)), 0.0)
    model.submit(request("short", range(100, 104)), 0.0)
    told = run(model)
    assert {outcome.rid for outcome in told} == {"short"}
    pool.done[0](40, 5.0)
    told = run(model)
    assert (told[-1].rid, told[-1].cached.storage) == ("long", 40 * PAGE)
    assert sum(len(hashes) for hashes, _, _ in pool.written) == 64 - 40 + 4, "what came from there is not offered again"
    assert {depth for _, _, depth in pool.written} == {0, 40}


def test_nothing_found_means_that_all_is_computed() -> None:
    pool = Delayed()
    model = EngineModel(SMALL, pool)
    model.submit(request("a", range(64)), 0.0)
    pool.done[0](0, 5.0)
    assert run(model)[-1].cached.tokens == 0


def test_copies_that_end_after_a_flush_end_in_nothing() -> None:
    pool = Delayed()
    model = EngineModel(SMALL, pool)
    model.submit(request("gone", range(64)), 0.0)
    model.submit(request("done", range(100, 104), 1), 0.0)
    while not model.load().counters.finished:
        model.advance(model.next_event_ms() or 0.0)
    assert model.abort("gone", 90.0)
    assert model.flush(), "its reply has ended, its write to the host tier has not"
    pool.done[0](64, 100.0)
    run(model)
    assert (model.cache.locked_pages, model.cache.host_pages, model.cache.reclaimable_pages) == (0, 0, 65_536 // PAGE)
    assert not pool.written


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[NodeAgent]:
    node = NodeAgent(tmp_path, dram_bytes=32 << 20, ssd_bytes=64 << 20)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


async def counted(emulated: Emulated, name: str, least: int) -> dict[str, int]:
    """The worker's counters of its pool, once `name` has reached `least`."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            pool: dict[str, int] = (await emulated.http.get("/_emulator/stats")).json()["pool"]
            if pool[name] >= least:
                return pool
            await asyncio.sleep(0.01)


async def details(emulated: Emulated, sent: dict[str, Any]) -> dict[str, Any]:
    reply = (await emulated.post(CHAT, sent)).json()
    found: dict[str, Any] = (reply.get("sglext") or {}).get("cached_tokens_details") or {}
    return found


@pytest.mark.slow
async def test_another_worker_restores_what_one_has_computed(agent: NodeAgent) -> None:
    async with unified(SMALL, l3_socket=agent.socket) as first, unified(SMALL, l3_socket=agent.socket) as second:
        assert (await first.http.get("/server_info")).json()["hicache_storage_backend"] == "dynamic"
        assert await details(first, body()) == {}
        prompt_pages = (await first.post("/tokenize", body())).json()["count"] // PAGE
        await counted(first, "written", prompt_pages)
        told = await details(second, body())
        assert (told["device"], told["host"], told["storage_backend"]) == (0, 0, "loadback-emulator")
        assert told["storage"] >= (prompt_pages - 1) * PAGE
        numbers = await counted(second, "read", told["storage"] // PAGE)
        assert (numbers["wrong"], numbers["crashes"], numbers["page_bytes"]) == (0, 0, PAGE * TOKEN_BYTES)
        assert (await agent.numbers())["dram_hits"] >= told["storage"] // PAGE
        assert (await details(second, body()))["device"] == told["storage"], "and has it then"


@pytest.mark.slow
async def test_namespaces_never_meet_in_the_pool(agent: NodeAgent) -> None:
    kinds: tuple[dict[str, str], ...] = (
        {},
        {"extra_key": "lora"},
        {"cache_salt": "tenant"},
        {"cache_salt": "tenant", "extra_key": "lora"},
    )
    for kind in kinds:  # each time another worker, which has nothing itself
        async with unified(SMALL, l3_socket=agent.socket) as emulated:
            assert await details(emulated, body(**kind)) == {}, kind
            await counted(emulated, "written", 50)
    async with unified(SMALL, l3_socket=agent.socket) as last:
        for kind in kinds:
            assert (await details(last, body(**kind)))["storage"] > 0, kind
        assert (await counted(last, "read", 4 * 50))["wrong"] == 0


@pytest.mark.slow
async def test_without_an_agent_all_is_computed(tmp_path: Path) -> None:
    async with unified(SMALL, l3_socket=tmp_path / "nobody.sock") as emulated:
        assert await details(emulated, body()) == {}
        assert (await counted(emulated, "read", 0))["read"] == 0
        assert (await details(emulated, body()))["device"] > 0


@pytest.mark.slow
async def test_a_page_of_other_content_is_not_used(agent: NodeAgent) -> None:
    """Its checksum is right: only the content tells."""
    digests = Chain(PAGE).extend_digests(range(PAGE * 20))[1]
    size = PAGE * TOKEN_BYTES
    content = bytearray().join(page_content(digests[0 if number == 17 else number], size) for number in range(20))
    address = ctypes.addressof(ctypes.c_char.from_buffer(content))
    client = PageClient(agent.socket, PageSpace("tiny", "emulated", "digests", PAGE), PortableCopier(), PATIENT)
    pages = EnginePages.striped([(address, size)], 20)
    assert all(await asyncio.to_thread(client.put, b"".join(digests), pages))
    client.close()
    pool = AgentPool(agent.socket, "tiny", PAGE, TOKEN_BYTES, 1000)
    resumed: asyncio.Queue[Any] = asyncio.Queue()
    await pool.start(resumed.put_nowait)
    told: list[int] = []
    pool.name(SHARED, range(20), digests)
    assert pool.read(range(20), SHARED, 16, 0.0, lambda count, now_ms: told.append(count)) is None
    async with asyncio.timeout(DEADLINE_S):
        (await resumed.get())(0.0)
    pool.close()
    assert (told, pool.counters.wrong, pool.counters.read) == ([17], 1, 17)


def test_names_are_bounded_and_unnamed_pages_are_not_read(tmp_path: Path) -> None:
    pool = AgentPool(tmp_path / "nobody.sock", "tiny", PAGE, TOKEN_BYTES, 3)
    digests = Chain(PAGE).extend_digests(range(PAGE * 5))[1]
    pool.name(SHARED, range(5), digests)
    assert pool.read(range(5), SHARED, 1, 0.0, lambda count, now_ms: None) == Reading(0, 0.0)
    pool.close()
