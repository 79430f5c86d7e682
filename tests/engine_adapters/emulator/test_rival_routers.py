"""The real sglang-router 0.3.2 and smg 1.13.0 drive the emulator's 2P1D pool unchanged, as they drive SGLang's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine_adapters.launch.environments import engine_bin
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import EngineProcess, start_process

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "some words " * 40}], "max_tokens": 8}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
COMMANDS = {
    "sglang-router": ("python", "-m", "sglang_router.launch_router"),
    "smg": ("smg", "launch"),
}


@dataclass
class Worker:
    process: EngineProcess
    url: str
    bootstrap_port: int

    async def stats(self) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=10.0) as http:
            found: dict[str, Any] = (await http.get(f"{self.url}/_emulator/stats")).json()
            return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Worker]]:
    """Two prefill workers and one decode worker, each a process."""
    async with AsyncExitStack() as exits:
        logs = tmp_path_factory.mktemp("workers")
        started = [await _start(role, exits, logs) for role in ("prefill", "prefill", "decode")]
        await asyncio.gather(*(worker.process.ready("/health", 60.0) for worker in started))
        yield started


async def _start(role: str, exits: AsyncExitStack, logs: Path) -> Worker:
    port, kv_port, replay_port, bootstrap_port = free_ports(4)
    ports = f"--port {port} --kv-port {kv_port} --kv-replay-port {replay_port} --bootstrap-port {bootstrap_port}"
    command = [sys.executable, "-m", "engine_adapters.emulator", "--role", role, "--speed", "20", *ports.split()]
    url = f"http://127.0.0.1:{port}"
    process = await start_process(f"{role}-{port}", url, command, {}, logs / f"{port}.log")
    exits.push_async_callback(process.stop)
    return Worker(process, url, bootstrap_port)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(COMMANDS))
async def router(
    request: pytest.FixtureRequest, workers: list[Worker], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one of the routers, which has registered all three workers."""
    port, metrics_port = free_ports(2)
    program, *words = COMMANDS[request.param]
    command = [str(engine_bin("rivals") / program), *words, "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    for worker in workers[:2]:
        command += ["--prefill", worker.url, str(worker.bootstrap_port)]
    command += ["--decode", workers[2].url, "--worker-startup-check-interval", "1", "--policy", "cache_aware"]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("router") / "router.log"
    process = await start_process(request.param, url, command, {}, log)
    try:
        await process.ready("/health", 60.0)
        async with httpx.AsyncClient(base_url=url, timeout=30.0) as http:
            await _serves(http)
            yield http
    finally:
        await process.stop()


async def _serves(http: httpx.AsyncClient) -> None:
    """Routers say that they are healthy before they know their workers."""
    for _ in range(300):
        if (await http.post(CHAT, json=BODY)).status_code == 200:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the router never served a chat")


async def test_a_chat_comes_from_decode_with_its_usage(router: httpx.AsyncClient) -> None:
    reply = await router.post(CHAT, json=BODY)
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] == 8
    assert reply.json()["metadata"]["engine"] == "loadback-emulator"


async def test_both_legs_of_every_call_end(router: httpx.AsyncClient, workers: list[Worker]) -> None:
    before = [await worker.stats() for worker in workers]
    replies = await asyncio.gather(*(router.post(CHAT, json=_numbered(number)) for number in range(12)))
    assert [reply.status_code for reply in replies] == [200] * 12
    after = [await worker.stats() for worker in workers]
    served = [new["requests"] - old["requests"] for new, old in zip(after, before, strict=True)]
    assert served[0] + served[1] == served[2] == 12
    assert [report["engine_requests"] for report in after] == [0, 0, 0]


async def test_a_stream_passes_chunk_by_chunk(router: httpx.AsyncClient) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    events = [event.removeprefix("data: ") for event in (await router.post(CHAT, json=body)).text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert len(chunks) > 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called(router: httpx.AsyncClient, stream: bool) -> None:
    body = {**BODY, "max_tokens": 100, "tools": [WEATHER], "stream": stream}
    reply = await router.post(CHAT, json=body)
    assert reply.status_code == 200
    assert '"name":"get_weather"' in reply.text
    assert '"finish_reason":"tool_calls"' in reply.text


async def test_native_and_completion_routes_work(router: httpx.AsyncClient) -> None:
    native = await router.post("/generate", json={"text": "some words", "sampling_params": {"max_new_tokens": 4}})
    assert native.json()["meta_info"]["completion_tokens"] == 4
    completion = await router.post("/v1/completions", json={"model": "tiny", "prompt": "some words", "max_tokens": 4})
    assert completion.json()["usage"]["completion_tokens"] == 4


async def test_a_session_finds_its_prefix_again(router: httpx.AsyncClient) -> None:
    """sglang-router draws a chat's prefill worker by chance, but of three turns two meet on one of the two workers."""
    body = {**BODY, "messages": [{"role": "user", "content": "a session of its own " * 60}]}
    turns = [(await router.post(CHAT, json=body)).json()["usage"] for _ in range(3)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in turns]
    assert max(cached) > turns[0]["prompt_tokens"] * 0.9


def _numbered(number: int) -> dict[str, Any]:
    return {**BODY, "messages": [{"role": "user", "content": f"conversation {number} " * 30}]}
