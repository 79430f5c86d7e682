"""Recorded agents through the gateway on real SGLang 2P1D; a prefill worker killed in mid-request; vLLM as a plain pool.

Long recordings are shortened by the one rule of `bench.replay.recording`; what was cut is written to the test's report.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import zstandard
from gateway_fixture import pd_pool_yaml, running_gateway

from bench.replay.player import Played, Player
from bench.replay.recording import Shortening, read_recording
from bench.replay.sessions import TextSession, read_sessions
from engine_adapters.launch.pool import Pool
from engine_adapters.launch.vllm import VllmSpec

DATA = Path(__file__).parents[1] / "data"
MODEL = "tiny-agent"
PAGE = 16
CHAT_RECORDINGS = sorted(path.name for path in (DATA / "clis").glob("*.jsonl.gz"))
pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway(pd_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    pool = pd_pool_yaml([server.url for server in pd_pool.prefills], [server.url for server in pd_pool.decodes])
    async with running_gateway(pool, tmp_path_factory.mktemp("gateway")) as url:
        yield url


async def in_thread(call: Any, *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


def play_recording(base_url: str, name: str, shortening: Shortening) -> list[Played]:
    with httpx.Client(base_url=base_url, timeout=120, trust_env=False) as client:
        player = Player(client, MODEL)
        recorded = [entry for entry in read_recording(DATA / "clis" / name) if entry.path.startswith("/v1/")]
        return [player.play(entry.path, shortening.apply(entry.body), entry.headers) for entry in recorded]


@pytest.mark.parametrize("name", CHAT_RECORDINGS)
async def test_a_recorded_cli_is_served_by_real_engines(gateway: str, name: str, record_property: Any) -> None:
    shortening = Shortening()
    played = await in_thread(play_recording, gateway, name, shortening)
    record_property(
        "cut",
        f"{shortening.cut.chars} of {shortening.cut.chars + shortening.cut.kept_chars} characters, "
        f"{shortening.cut.tools} tools",
    )
    refused = [entry for entry in played if not entry.complete]
    assert not refused, refused
    assert all(">" in entry.worker and entry.thread for entry in played)


def play_session(base_url: str, session: TextSession, turns: int) -> list[Played]:
    with httpx.Client(base_url=base_url, timeout=120, trust_env=False) as client:
        player = Player(client, MODEL)
        bodies = [{"messages": session.messages(turn, 600), "stream": True} for turn in range(min(turns, len(session.turns)))]
        return [player.play("/v1/chat/completions", body) for body in bodies]


@pytest.mark.parametrize("agent", ["miniswe", "magentic", "taubench"])
async def test_text_sessions_of_agents_keep_their_thread_and_hit_their_cache(gateway: str, agent: str) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO((DATA / "lmcache_agent" / f"{agent}.jsonl.zst").read_bytes()))
    sessions = sorted(read_sessions(raw.read().decode().splitlines()), key=lambda found: -len(found.turns))[:2]
    for session in sessions:
        played = await in_thread(play_session, gateway, session, 10)
        assert not [entry for entry in played if not entry.complete]
        assert len({entry.thread for entry in played}) == 1
    async with httpx.AsyncClient(base_url=gateway, trust_env=False) as client:
        decisions = (await client.get("/admin/decisions", params={"limit": len(played)})).json()["decisions"]
    stayed = [(before, after) for before, after in pairwise(decisions) if before["worker"] == after["worker"]]
    for before, after in stayed:  # a turn may move, when another worker is predicted to be done first
        held, found = before["actual"]["prompt_tokens"], after["actual"]["cached_tokens"]
        assert found >= held - 2 * PAGE, "all of the prompt before but its open end"
    assert stayed or len(decisions) < 3


async def test_a_prompt_served_twice_reports_cached_tokens(gateway: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "the same words again and again " * 40}], "max_tokens": 4}
    async with httpx.AsyncClient(base_url=gateway, timeout=60, trust_env=False) as client:
        replies = [(await client.post("/v1/chat/completions", json=body)) for _ in range(2)]
    first, second = (reply.json()["usage"] for reply in replies)
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - 32


async def test_killing_a_prefill_worker_in_mid_request_loses_nothing(gateway: str, pd_pool: Pool) -> None:
    """Requests without a byte out are served by the other prefill; afterwards the worker comes back and serves again."""
    async with httpx.AsyncClient(base_url=gateway, timeout=180, trust_env=False) as client:
        bodies = [
            {"model": MODEL, "messages": [{"role": "user", "content": f"{i} " + f"word{i} other " * 700}], "max_tokens": 4}
            for i in range(6)
        ]
        calls = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        victim, other = await busy_prefill(client)
        await pd_pool.prefills[victim].process.kill()
        replies = await asyncio.gather(*calls)
        assert [reply.status_code for reply in replies] == [200] * len(bodies), [reply.text for reply in replies]
        assert any(reply.headers["x-loadback-worker"].startswith(f"p{other}") for reply in replies)
        await pd_pool.prefills[victim].restart()
        await until_state(client, f"p{victim}", "ready")
        assert (await client.post("/v1/chat/completions", json=bodies[0])).status_code == 200


async def busy_prefill(client: httpx.AsyncClient) -> tuple[int, int]:
    """The number of a prefill worker with a turn in flight, and the other's."""
    found: list[str] = []

    def busy(worker: dict[str, Any]) -> bool:
        if worker["role"] == "prefill" and worker["inflight"] > 0:
            found.append(worker["id"])
        return bool(found)

    await until(client, 60, busy)
    victim = int(found[0].removeprefix("p"))
    return victim, 1 - victim


async def until_state(client: httpx.AsyncClient, worker_id: str, state: str) -> None:
    await until(client, 120, lambda worker: worker["id"] == worker_id and worker["state"] == state)


async def until(client: httpx.AsyncClient, deadline_s: float, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(deadline_s):
        while not any(holds(worker) for worker in (await client.get("/admin/workers")).json()["workers"]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # another process: there is no event to wait for


async def test_vllm_is_driven_as_a_plain_openai_pool(vllm_spec: VllmSpec, tmp_path: Path) -> None:
    for engine in ("vllm", "openai"):
        pool: dict[str, object] = {"engine": engine, "unified": [{"url": vllm_spec.url, "name": "v0"}]}
        folder = tmp_path / engine
        folder.mkdir()
        async with running_gateway(pool, folder) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "messages": [{"role": "user", "content": "hello " * 60}], "max_tokens": 8}
            whole = await client.post("/v1/chat/completions", json=body)
            assert whole.status_code == 200, whole.text
            assert whole.headers["x-loadback-worker"] == "v0"
            streamed = await client.post("/v1/chat/completions", json=body | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
            assert '"usage":{' not in streamed.text
            decision = (await client.get("/admin/decisions")).json()["decisions"][-1]
            assert decision["actual"]["prompt_tokens"] == whole.json()["usage"]["prompt_tokens"]
            assert json.dumps(decision)
