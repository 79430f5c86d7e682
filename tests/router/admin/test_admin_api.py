"""The API around the hot path, on a gateway whose workers were never reached."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from engine_adapters.base import EngineInfo
from router.app import build_app, build_routes
from router.config.load import parse_config
from router.gateway import Gateway

DOCS = Path(__file__).parents[3] / "docs"
POOL = """
pools:
  - prefill: [{url: 'http://127.0.0.1:1', name: p0}, {url: 'http://127.0.0.1:2', name: p1}]
    decode: [{url: 'http://127.0.0.1:3', name: d0}]
"""


def make_gateway(text: str = POOL) -> Gateway:
    return Gateway(parse_config(text, "test", {}), lambda: 1000.0, random.Random(1))


def client_of(gateway: Gateway, host: str = "127.0.0.1") -> httpx.AsyncClient:
    app = build_app(gateway, build_routes(gateway))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(host, 1)), base_url="http://gateway")


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = make_gateway()
    yield made
    await made.close()


def make_ready(gateway: Gateway) -> None:
    for worker in gateway.fleet.workers:
        worker.discovered(EngineInfo("sglang test", ("tiny",), page_size=16, bootstrap_port=9000, role=worker.role))
    for pool in gateway.fleet.pools.values():
        pool.name_models()


async def test_ready_needs_a_prefill_and_a_decode_worker(gateway):
    async with client_of(gateway) as client:
        assert (await client.get("/healthz")).status_code == 200
        refused = await client.get("/readyz")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        make_ready(gateway)
        gateway.fleet.drain("d0")
        assert (await client.get("/readyz")).status_code == 503
        gateway.fleet.find("d0")[1].discovered(EngineInfo("x", ("tiny",)))
        assert (await client.get("/readyz")).status_code == 503, "discovery does not undo a drain"


async def test_workers_are_listed_added_drained_and_removed(gateway):
    make_ready(gateway)
    async with client_of(gateway) as client:
        rows = (await client.get("/admin/workers")).json()["workers"]
        assert [(row["id"], row["role"], row["state"]) for row in rows] == [
            ("p0", "prefill", "ready"),
            ("p1", "prefill", "ready"),
            ("d0", "decode", "ready"),
        ]
        worker = {"url": "http://127.0.0.1:4", "name": "d1"}
        added = await client.post("/admin/workers", json={"role": "decode", "worker": worker})
        assert (added.status_code, added.json()["state"]) == (201, "starting")
        again = await client.post("/admin/workers", json={"role": "decode", "worker": worker})
        assert again.status_code == 400
        assert again.json()["error"]["param"] == "worker.name"
        assert "'d1' (http://127.0.0.1:4, starting) is already here" in again.json()["error"]["message"]
        await client.post("/admin/workers/d1/drain")
        nameless = await client.post("/admin/workers", json={"role": "decode", "worker": {"url": worker["url"]}})
        assert nameless.json()["error"] == {
            "message": "worker 'd1' (http://127.0.0.1:4, draining) is already here: to bring it back or to change it, "
            "DELETE /admin/workers/d1 first, then POST it again",
            "type": "invalid_request_error",
            "param": "worker.url",
            "code": None,
        }
        wrong = await client.post("/admin/workers", json={"role": "unified", "worker": worker | {"name": "x"}})
        assert "prefill or decode" in wrong.json()["error"]["message"]
        assert (await client.post("/admin/workers/p0/drain")).json()["state"] == "draining"
        assert (await client.delete("/admin/workers/d1")).json()["removed"]
        gone = await client.delete("/admin/workers/d1")
        assert (gone.status_code, gone.json()["error"]["param"]) == (400, "worker_id")
        nowhere = await client.post("/admin/workers", json={"pool": "x", "role": "decode", "worker": worker | {"name": "y"}})
        assert (nowhere.status_code, nowhere.json()["error"]["param"]) == (400, "pool")


async def test_the_policy_is_validated_and_replaced_as_a_whole(gateway):
    async with client_of(gateway) as client:
        assert (await client.get("/admin/policy")).json()["name"] == "cost"
        verdict = (await client.post("/admin/policy/validate", json={"name": "cost", "near_tie": 1})).json()
        assert verdict == {"valid": False, "errors": ["body: near_tie: unknown key; did you mean near_tie_ms?"]}
        refused = await client.put("/admin/policy", json={"name": "best"})
        assert refused.status_code == 400
        assert gateway.fleet.policy_config.name == "cost"
        assert (await client.put("/admin/policy", json={"name": "round_robin"})).json()["name"] == "round_robin"
        assert all(pool.policy.name == "round_robin" for pool in gateway.fleet.pools.values())


async def test_explain_shows_every_pair_and_changes_nothing(gateway):
    make_ready(gateway)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4000}]}
    async with client_of(gateway) as client:
        answers = [(await client.post("/admin/explain", json=body)).json() for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0]["kind"] == "new"
        assert (answers[0]["prompt_tokens"] > 900, answers[0]["prompt_tokens_exact"]) == (True, False)
        assert answers[0]["chosen"]["terms"]["compute_ms"] > 0
        assert [other["worker"] for other in answers[0]["others"]]
        assert answers[0]["reason"]
        assert (await client.get("/admin/threads")).json()["count"] == 0
        unknown = await client.post("/admin/explain", json=body | {"model": "nope"})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found"
        elsewhere = await client.post("/admin/explain", params={"path": "/v2"}, json=body)
        assert elsewhere.json()["error"]["param"] == "path"


@pytest.mark.parametrize(
    ("path", "member", "told"),
    [
        (
            "/v1/completions",
            "messages",
            "`prompt`, which this one lacks: it is one for /v1/chat/completions or /v1/messages",
        ),
        ("/v1/responses", "messages", "`input`, which this one lacks: it is one for /v1/chat/completions or /v1/messages"),
        ("/v1/chat/completions", "prompt", "`messages`, which this one lacks: it is one for /v1/completions, so give that"),
        ("/v1/messages", "input", "`messages`, which this one lacks: it is one for /v1/responses, so give that as path"),
        ("/v1/completions", "user", "`prompt`, which this one lacks"),
    ],
)
async def test_explain_refuses_the_body_of_another_path(gateway, path, member, told):
    make_ready(gateway)
    async with client_of(gateway) as client:
        refused = await client.post("/admin/explain", params={"path": path}, json={"model": "tiny", member: "hello"})
    assert refused.status_code == 400
    assert told in refused.json()["error"]["message"]


async def test_explain_names_who_was_not_weighed_and_why(gateway):
    make_ready(gateway)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with client_of(gateway) as client:

        async def left_out() -> dict[str, str]:
            return (await client.post("/admin/explain", json=body)).json()["left_out"]

        assert await left_out() == {}
        lost = gateway.fleet.find("p1")[1]
        lost.full_until_ms = 2000.0
        assert (await left_out())["p1"].startswith("refused a turn")
        for _ in range(5):
            lost.breaker.on_failure(1000.0)
        assert await left_out() == {"p1": "breaker open"}
        gateway.fleet.drain("p1")
        assert await left_out() == {"p1": "draining"}


async def test_explain_takes_a_class_and_another_deadline():
    slo = "policy: {objective: slo, classes: {fast: {ttft_ms: 500, shed: true}}}"
    gateway = make_gateway(POOL + slo)
    make_ready(gateway)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4000}]}
    async with client_of(gateway) as client:
        fast = {"x-loadback-class": "fast"}
        told = (await client.post("/admin/explain", json=body, headers=fast)).json()
        assert (told["class"], told["deadline_ms"]) == ("fast", 500.0)
        tight = (await client.post("/admin/explain", json=body, headers=fast, params={"deadline_ms": 0.5})).json()
        assert (tight["class"], tight["deadline_ms"], tight["shed"]) == ("fast", 0.5, True)
        for wrong in ("0", "inf", "soon"):
            refused = await client.post("/admin/explain", json=body, params={"deadline_ms": wrong})
            assert refused.status_code == 422
    await gateway.close()


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
async def test_a_policy_with_a_number_that_is_none_is_refused(gateway, value):
    async with client_of(gateway) as client:
        before = (await client.get("/admin/policy")).json()
        body = f'{{"near_tie_ms": {value}}}'
        refused = await client.put("/admin/policy", content=body, headers={"content-type": "application/json"})
        assert refused.status_code == 400
        assert "near_tie_ms" in refused.json()["error"]["message"]
        assert (await client.get("/admin/policy")).json() == before


async def test_without_a_token_admin_answers_loopback_only(gateway):
    async with client_of(gateway, host="10.1.2.3") as client:
        refused = await client.get("/admin/workers")
        assert refused.status_code == 401
        assert "auth.admin_token" in refused.json()["error"]["message"]
        assert (await client.get("/healthz")).status_code == 200


async def test_with_a_token_everybody_needs_it():
    gateway = make_gateway(POOL + "auth: {admin_token: secret, api_keys: [client]}")
    async with client_of(gateway, host="10.1.2.3") as client:
        for headers in ({}, {"authorization": "Bearer client"}, {"authorization": "Bearer secre"}):
            assert (await client.get("/admin/workers", headers=headers)).status_code == 401
        assert (await client.get("/admin/workers", headers={"authorization": "Bearer secret"})).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"x-api-key": "client"})).json()["object"] == "list"
    await gateway.close()


async def test_the_door_is_asked_before_a_body_is_read():
    gateway = make_gateway(POOL + "auth: {admin_token: secret}")
    async with client_of(gateway) as client:
        for method, path in (("PUT", "/admin/policy"), ("POST", "/admin/workers"), ("PUT", "/admin//policy")):
            assert (await client.request(method, path, content=b"{")).status_code == 401
    await gateway.close()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/kv/prefetch", "/v1/kv/pins", "/v1/messages/count_tokens", "/admin/explain"])
async def test_bodies_are_bounded_on_every_path(path, chunked):
    gateway = make_gateway(POOL + "listen: {max_body_bytes: 1000}")
    body = b" " * 1001

    async def pieces():
        yield body[:600]
        yield body[600:]

    async with client_of(gateway) as client:
        refused = await client.post(path, content=pieces() if chunked else body)
        assert refused.status_code == 413
        assert "listen.max_body_bytes" in refused.json()["error"]["message"]
    await gateway.close()


async def test_unknown_paths_answer_in_a_shape_that_clients_read(gateway):
    async with client_of(gateway) as client:
        missing = await client.get("/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "path_not_served")


async def test_every_metric_is_documented(gateway):
    async with client_of(gateway) as client:
        text = (await client.get("/metrics")).text
    shown = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    assert {name for name in shown if not name.endswith("_created")} == documented


@pytest.mark.parametrize(
    ("method", "path", "body", "param", "words"),
    [
        (
            "POST",
            "/admin/workers",
            {"role": "unified", "worker": {"url": "http://h:1"}, "colour": 1},
            "colour",
            "unknown member",
        ),
        (
            "POST",
            "/admin/workers",
            {"role": "chef", "worker": {"url": "http://h:1", "x": 1}},
            "role",
            "worker.x: unknown member",
        ),
        ("POST", "/admin/workers", {}, "role", "worker: Field required"),
        ("POST", "/admin/workers", [], "body", "body"),
        ("PUT", "/admin/policy", 7, "body", "expected a mapping of keys to values"),
        (
            "POST",
            "/admin/workers",
            {"role": "unified", "worker": {"url": "h:1"}},
            "worker.url",
            "worker.url: expected a URL",
        ),
        ("GET", "/admin/decisions?limit=x", None, "limit", "integer"),
        ("GET", "/admin/threads?limit=0", None, "limit", "greater than or equal to 1"),
        ("POST", "/admin/workers/p0/flush?timeout_s=900", None, "timeout_s", "300"),
    ],
)
async def test_malformed_admin_calls_are_told_as_all_errors_are(gateway, method, path, body, param, words):
    async with client_of(gateway) as client:
        refused = await client.request(method, path, json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (422, "invalid_request_error", "malformed")
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/admin/workers"), ("PUT", "/admin/policy"), ("PUT", "/admin/prefetch")])
async def test_a_body_that_is_not_read_as_json_is_told_why(gateway, method, path):
    async with client_of(gateway) as client:
        for content, headers, words in (
            (b'{"mode": }', {"content-type": "application/json"}, "body: no JSON: Expecting value at character 9"),
            (b'{"mode": "enabled"}', {}, "body: send JSON, with the header `content-type: application/json`"),
            (
                b'{"mode": "enabled"}',
                {"content-type": "application/x-www-form-urlencoded"},
                "body: send JSON, with the header `content-type: application/json`",
            ),
        ):
            refused = await client.request(method, path, content=content, headers=headers)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], error["message"]) == (422, "body", words)


async def test_a_fault_of_ours_has_the_shape_of_errors(gateway, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("router.admin.routes.thread_view", broken)
    monkeypatch.setattr(type(gateway.threads), "newest", lambda *_: [None])
    app = build_app(gateway, build_routes(gateway))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        failed = await client.get("/admin/threads")
        metrics = (await client.get("/metrics")).text
    assert (failed.status_code, failed.json()["error"]["message"]) == (500, "internal error")
    assert "loadback_handler_crashes_total 1.0" in metrics
