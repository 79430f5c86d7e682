"""What `/v1/kv` refuses, on a gateway whose workers were never reached: short prompts, unknown names, no engine yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx
import pytest

from engine_adapters.base import EngineInfo
from engine_adapters.launch.environments import ROOT
from router.app import build_app, build_routes
from router.config.tree import Config
from router.gateway import Gateway

PAGE = 16
TREE = {"pools": [{"models": ["m"], "unified": [{"url": "http://127.0.0.1:1"}]}], "prefetch": {"mode": "enabled"}}
naming_tokens = pytest.mark.parametrize("path", ["/v1/kv/prefetch", "/v1/kv/pins"])


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway(Config.model_validate(TREE), lambda: 1000.0, Random(1))
    yield made
    await made.close()


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(gateway, build_routes(gateway)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


def discover(gateway: Gateway) -> None:
    for worker in gateway.fleet.workers:
        worker.discovered(EngineInfo("sglang test", ("m",), page_size=PAGE))


@naming_tokens
async def test_before_an_engine_is_there_it_may_be_asked_again(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.post(path, json={"tokens": [1] * PAGE})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker")
    assert int(reply.headers["retry-after"]) > 0


@naming_tokens
async def test_less_than_a_page_is_refused_with_the_pages_size(gateway: Gateway, http: httpx.AsyncClient, path: str) -> None:
    discover(gateway)
    short = await http.post(path, json={"tokens": [1] * (PAGE - 1)})
    assert short.status_code == 400
    assert "15 tokens is shorter than a page of 16" in short.json()["error"]["message"]
    taken = await http.post(path, json={"tokens": [1] * PAGE})
    assert taken.status_code == {"/v1/kv/prefetch": 202, "/v1/kv/pins": 409}[path], "no agent is there to pin it"


async def test_more_bytes_than_there_are_is_no_bound(gateway: Gateway, http: httpx.AsyncClient) -> None:
    discover(gateway)
    for max_bytes, status in ((1 << 60, 202), ((1 << 60) + 1, 400), (10**30, 400)):
        reply = await http.post("/v1/kv/prefetch", json={"tokens": [1] * PAGE, "max_bytes": max_bytes})
        assert reply.status_code == status, reply.text


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/v1/kv/prefetch/pf-99", None, "prefetch_not_found"),
        ("DELETE", "/v1/kv/prefetch/99x", None, "prefetch_not_found"),
        ("GET", "/v1/kv/pins/pin-99", None, "pin_not_found"),
        ("DELETE", "/v1/kv/pins/pin-99", None, "pin_not_found"),
        ("POST", "/v1/kv/pins", {"tokens": [1] * PAGE, "node": "nowhere"}, "node_not_found"),
        ("GET", "/v1/kv/nothing", None, "path_not_served"),
    ],
)
async def test_unknown_things_are_told_from_unknown_paths(
    gateway: Gateway, http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, code: str
) -> None:
    discover(gateway)
    reply = await http.request(method, path, json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, code)


async def test_what_names_no_page_is_quoted(gateway: Gateway, http: httpx.AsyncClient) -> None:
    discover(gateway)
    for hashes in (["zz"], ["00" * 32, "zz"], ["zz" * 32]):
        error = (await http.post("/v1/kv/prefetch", json={"hashes": hashes})).json()["error"]
        assert error["message"] == f"hashes: page digests have 64 hex digits each, not {hashes[-1]!r}"
        assert error["param"] == "hashes"


async def test_messages_that_make_no_prompt_are_told_in_plain_words() -> None:
    pool = {"name": "p", **TREE["pools"][0], "prompt": {"model_dir": str(ROOT / "configs" / "models" / "tiny-agent")}}
    made = Gateway(Config.model_validate({**TREE, "pools": [pool]}), lambda: 1000.0, Random(1))
    discover(made)
    transport = httpx.ASGITransport(build_app(made, build_routes(made)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        error = (await client.post("/v1/kv/prefetch", json={"messages": []})).json()["error"]
    assert error["message"] == "messages: no prompt can be made of them: messages must not be empty"
    assert error["param"] == "messages"
    await made.close()


async def test_what_was_off_at_the_start_is_not_switched_on() -> None:
    """Nothing has watched its turns."""
    made = Gateway(Config.model_validate({"pools": TREE["pools"]}), lambda: 1000.0, Random(1))
    transport = httpx.ASGITransport(build_app(made, build_routes(made)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for mode in ("enabled", "disabled"):
            reply = await client.put("/admin/prefetch", json={"mode": mode})
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "prefetch_disabled")
            assert reply.json()["error"]["message"].endswith(": set it to enabled or dry_run in the file, and restart")
        assert (await client.put("/admin/prefetch", json={"mode": "on"})).status_code == 422
    await made.close()
