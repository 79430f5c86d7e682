"""What an emulated worker says about itself, and how it is read by the project's own adapter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from emulator_pool import FAST, Emulated, pair, unified

from costmodel.values import Role
from engine_adapters import adapter_for, detect
from engine_adapters.base import Endpoint, EngineKind
from engine_adapters.emulator.model.live_request import Stage

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 6}
ENDPOINT = Endpoint("http://emulated")


async def test_the_adapter_takes_it_for_sglang() -> None:
    async with unified(FAST, kv_port=None) as emulated:
        assert await detect(emulated.http, ENDPOINT) is EngineKind.SGLANG
        info = await adapter_for(EngineKind.SGLANG).discover(emulated.http, ENDPOINT)
        assert "0.5.23" in info.engine
        assert (info.models, info.role, info.page_size) == (("tiny",), Role.UNIFIED, 16)
        assert info.reports_cached_tokens


async def test_the_adapter_sees_roles_events_and_bootstrap_ports() -> None:
    async with pair(bootstrap_port=12_345) as pool:
        adapter = adapter_for(EngineKind.SGLANG)
        infos = [await adapter.discover(leg.http, ENDPOINT) for leg in (pool.prefill, pool.decode)]
        assert [info.role for info in infos] == [Role.PREFILL, Role.DECODE]
        assert infos[0].bootstrap_port == 12_345
        assert infos[0].event_feeds == ()


async def test_every_reply_names_the_emulator() -> None:
    async with unified() as emulated:
        for path in ("/health", "/v1/models", "/server_info", "/v1/loads", "/metrics", "/nowhere"):
            assert (await emulated.http.get(path)).headers["x-loadback-emulator"] == "1"
        assert (await emulated.http.get("/server_info")).json()["engine"] == "loadback-emulator"
        assert (await emulated.post(CHAT, BODY)).json()["metadata"]["engine"] == "loadback-emulator"


async def test_loads_count_queues_and_work() -> None:
    slow = msgspec.structs.replace(FAST, speed=0.05, max_running=1)
    async with unified(slow) as emulated:
        calls = [asyncio.create_task(emulated.post(CHAT, {**BODY, "rid": f"r{number}"})) for number in range(3)]
        for _ in range(1_000):
            if emulated.worker.driver.model.stage("r2") is Stage.WAITING:
                break
            await asyncio.sleep(0.002)
        [report] = await adapter_for(EngineKind.SGLANG).read_loads(emulated.http, ENDPOINT)
        assert report.waiting_requests == 2
        assert report.kv_tokens_capacity == slow.kv_tokens
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    ("query", "sections"),
    [
        ("", {"memory", "disaggregation", "queues"}),
        ("?include=core", set()),
        ("?include=disagg,queues", {"disaggregation", "queues"}),
    ],
)
async def test_loads_come_in_sections(query: str, sections: set[str]) -> None:
    async with unified() as emulated:
        [load] = (await emulated.http.get(f"/v1/loads{query}")).json()["loads"]
        assert {key for key, value in load.items() if isinstance(value, dict)} == sections


async def test_loads_of_other_ranks_formats_and_nonsense() -> None:
    async with unified() as emulated:
        assert (await emulated.http.get("/v1/loads?dp_rank=3")).json()["loads"] == []
        assert 'sglang_num_running_reqs{dp_rank="0"} 0' in (await emulated.http.get("/v1/loads?format=prometheus")).text
        assert (await emulated.http.get("/v1/loads?include=nonsense")).status_code == 500


async def test_a_flush_waits_as_long_as_it_may() -> None:
    async with unified(msgspec.structs.replace(FAST, speed=0.05)) as emulated:
        running = asyncio.create_task(emulated.post(CHAT, {**BODY, "rid": "busy"}))
        for _ in range(1_000):
            if emulated.worker.driver.model.stage("busy") is not Stage.GONE:
                break
            await asyncio.sleep(0.002)
        assert (await emulated.http.post("/flush_cache")).text == "Flush cache failed.\n"
        flushed = asyncio.create_task(emulated.http.post("/flush_cache?timeout=10"))
        emulated.worker.abort("busy")
        assert (await flushed).status_code == 200
        await running


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_ends_a_reply_as_a_reply(stream: bool) -> None:
    async with unified(msgspec.structs.replace(FAST, speed=0.5)) as emulated:
        body = {**BODY, "rid": "job-17", "stream": stream, "max_tokens": 5_000, "ignore_eos": True}
        reply = asyncio.create_task(emulated.post(CHAT, body))
        for _ in range(1_000):
            if emulated.worker.driver.model.stage("job-17") is Stage.RUNNING:
                break
            await asyncio.sleep(0.002)
        await emulated.post("/abort_request", {"rid": "job-"})  # a prefix is enough
        done = await reply
        assert done.status_code == 200
        assert '"finish_reason":"abort"' in done.text


async def test_a_full_queue_is_told_with_503() -> None:
    async with unified(msgspec.structs.replace(FAST, speed=0.05), max_requests=1) as emulated:
        first = asyncio.create_task(emulated.post(CHAT, {**BODY, "rid": "first"}))
        for _ in range(1_000):
            if emulated.worker.driver.model.stage("first") is not Stage.GONE:
                break
            await asyncio.sleep(0.002)
        refused = await emulated.post(CHAT, BODY)
        assert (refused.status_code, refused.json()["message"]) == (503, "The request queue is full.")
        emulated.worker.abort("first")
        await first


async def test_of_duplicate_members_the_last_wins() -> None:
    async with unified() as emulated:
        body = b'{"rid":"first","model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"rid":"last"}'
        reply = await emulated.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert reply.json()["id"] == "last"


async def test_header_overrides_reach_a_messages_call() -> None:
    async with unified() as emulated:
        seen: list[str] = []
        submit = emulated.worker.driver.submit
        emulated.worker.driver.submit = lambda request, queue: (seen.append(request.rid), submit(request, queue))[1]  # type: ignore[method-assign]
        await emulated.post("/v1/messages", BODY, headers={"x-override-rid": "from-header"})
        assert seen == ["from-header"]


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/models", None, 401),
        ("/v1/models", "key", 200),
        ("/flush_cache", "key", 401),
        ("/flush_cache", "admin", 200),
        ("/health", None, 200),
        ("/metrics", None, 200),
    ],
)
async def test_keys_open_what_they_open(path: str, key: str | None, status: int) -> None:
    async with unified(FAST, api_key="key", admin_key="admin") as emulated:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        assert (await emulated.http.get(path, headers=headers)).status_code == status


async def test_tokenize_agrees_with_usage() -> None:
    async with unified() as emulated:
        counted = (await emulated.post("/v1/tokenize", {"model": "tiny", "messages": BODY["messages"]})).json()
        used = (await emulated.post(CHAT, BODY)).json()["usage"]["prompt_tokens"]
        assert counted["count"] == len(counted["tokens"]) == used
        assert (await emulated.post("/tokenize", {"prompt": ["a b", "c"]})).json()["count"] == [2, 1]


async def test_unknown_models_are_named_and_served() -> None:
    async with unified() as emulated:
        assert (await emulated.http.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"
        assert (await emulated.post(CHAT, {**BODY, "model": "other"})).json()["model"] == "other"


async def test_salted_prompts_share_nothing() -> None:
    async with unified() as emulated:
        body = {**BODY, "messages": [{"role": "user", "content": "words " * 60}]}
        cached = []
        for salt in ("a", "b", "a"):
            reply = await emulated.post(CHAT, {**body, "cache_salt": salt})
            cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[:2] == [0, 0]
        assert cached[2] > 0


async def test_images_are_refused_by_a_text_model() -> None:
    async with unified() as emulated:
        part = {"type": "image_url", "image_url": {"url": "data:,"}}
        reply = await emulated.post(CHAT, {**BODY, "messages": [{"role": "user", "content": [part]}]})
        assert (reply.status_code, "image_url" in reply.json()["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "streamed", "kind"),
    [
        (CHAT, 400, "BadRequestError"),
        ("/v1/messages", 200, "BadRequestError"),
        ("/v1/responses", 200, "invalid_request_error"),
        ("/generate", 200, None),
    ],
)
async def test_a_prompt_that_is_too_long_is_refused_in_each_dialect(path: str, streamed: int, kind: str | None) -> None:
    words = "word " * 100
    body = {**BODY, "messages": [{"role": "user", "content": words}], "input": words, "text": words}
    if path == "/v1/responses":
        body["text"] = None
    async with unified(msgspec.structs.replace(FAST, context_tokens=64)) as emulated:
        whole = await emulated.post(path, body)
        assert whole.status_code == 400
        assert "longer than the model's context length (64 tokens)" in whole.text
        told = whole.json()
        assert kind is None or kind in (told.get("type"), told.get("error", {}).get("type"))
        stream = await emulated.post(path, {**body, "stream": True})
        assert stream.status_code == streamed
        assert "longer than the model's context length (64 tokens)" in stream.text


AGENT_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]


async def test_an_agents_session_on_chat_comes_to_an_end() -> None:
    async with unified() as emulated:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "list the files"}]
        cached = []
        for _ in range(3):
            reply = await _chat(emulated, messages)
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
            message = reply["choices"][0]["message"]
            messages.append({"role": "assistant", "content": message["content"], "tool_calls": message.get("tool_calls")})
            for call in message.get("tool_calls") or ():
                assert json.loads(call["function"]["arguments"]) == {"command": "ls -la"}
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "README.md src"})
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert cached[0] < cached[1] < cached[2]


async def _chat(emulated: Emulated, messages: list[dict[str, Any]]) -> dict[str, Any]:
    sent = [{key: value for key, value in message.items() if value is not None} for message in messages]
    reply: httpx.Response = await emulated.post(CHAT, {"model": "tiny", "messages": sent, "tools": AGENT_TOOLS})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found
