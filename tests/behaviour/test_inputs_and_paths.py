"""Odd and bad inputs, and the paths that the gateway serves or keeps to itself."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from fake_engine import MODEL
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import CHAT, Call, End, ask, send

from router.dialects import DIALECTS

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "x"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def get(port: int, path: str, method: str = "GET") -> Call:
    return await (await send(port, b"", path, method=method)).finish()


def assert_refused(stage: Stage, call: Call, status: int) -> None:
    assert (call.status, call.end) == (status, End.CLEAN)
    assert set(call.error) == {"message", "type", "code", "param"}
    assert stage.calls() == 0


BAD = {
    "not JSON": (b"hello", 400),
    "empty": (b"", 400),
    "a list": (b"[]", 400),
    "cut off": (b'{"model":"fake-model","messages":[{"role":"us', 400),
    "no messages": (b'{"model":"fake-model"}', 400),
    "messages as text": (b'{"model":"fake-model","messages":"hello"}', 400),
    "no model": (b'{"messages":[{"role":"user","content":"x"}]}', 400),
    "model as number": (b'{"model":3,"messages":[{"role":"user","content":"x"}]}', 400),
    "unknown model": (b'{"model":"nope","messages":[{"role":"user","content":"x"}]}', 404),
    "deeply nested": (b'{"model":"fake-model","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_inputs_reach_no_engine(stage: Stage, name: str) -> None:
    body, status = BAD[name]
    assert_refused(stage, await ask(stage.port, body), status)


async def test_what_is_not_utf8_is_left_to_the_engine(stage: Stage) -> None:
    call = await ask(stage.port, b'{"model":"fake-model","messages":[{"role":"user","content":"\xff"}]}')
    assert (call.status, call.error["message"]) == (400, "not JSON")


async def test_an_unknown_model_is_named(stage: Stage) -> None:
    call = await ask(stage.port, {"model": "nope", "messages": [USER]})
    assert (call.error["code"], call.error["param"]) == ("model_not_found", "model")
    assert MODEL in call.error["message"]


async def test_a_body_above_the_limit(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, listen={"max_body_bytes": 1000})
    assert_refused(stage, await ask(stage.port, stage.body(filler="x" * 2000)), 413)


LARGE = "x" * 70_000
EVERYWHERE = [
    *(
        ("GET", path)
        for path in ("/healthz", "/metrics", "/admin/workers", "/v1/models", "/v1/models/a/b", "/v1/kv/pins", "/a")
    ),
    *(("POST", path) for path in (*DIALECTS, "/v1/messages/count_tokens", "/v1/kv/prefetch", "/admin/explain", "/foo")),
    ("GET", "/v1/messages"),
]


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
@pytest.mark.parametrize(("query", "headers"), [("", (f"x-a: {LARGE}",)), (f"?{LARGE}", ())], ids=["header", "query"])
async def test_a_large_head_is_told_on_every_path(
    plain: Stage, method: str, path: str, query: str, headers: tuple[str, ...]
) -> None:
    call = await (await send(plain.port, b"", path + query, headers, method)).finish()
    assert (call.status, call.end) == (431, End.CLEAN)
    if path.startswith("/v1/messages"):
        assert call.error["type"] == "invalid_request_error"
        assert call.json["type"] == "error"
    else:
        assert call.error["code"] == "head_too_large"


async def test_a_compressed_body_is_named_as_such(stage: Stage) -> None:
    packed = gzip.compress(json.dumps(stage.body()).encode())
    call = await ask(stage.port, packed, headers=("Content-Encoding: gzip",))
    assert_refused(stage, call, 415)
    assert call.error["message"] == "the body is gzip-encoded: send it without a content-encoding"


@pytest.mark.parametrize(
    "path", ["/v1/kv/pins", "/v1/kv/prefetch", "/v1/messages/count_tokens", "/admin/explain", "/admin/workers"]
)
async def test_no_path_takes_a_compressed_body(plain: Stage, path: str) -> None:
    packed = gzip.compress(json.dumps(plain.body()).encode())
    for body in (packed, json.dumps(plain.body()).encode()):
        call = await ask(plain.port, body, path, headers=("Content-Encoding: gzip",))
        assert call.status == 415
        assert "gzip-encoded" in call.error["message"]
    for headers in (("Content-Encoding: identity",), ()):
        assert (await ask(plain.port, plain.body(), path, headers=headers)).status != 415


# What engines judge themselves goes through.
GOOD: dict[str, dict[str, Any]] = {
    "content null with tool calls": {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    "tool result in parts": {
        "messages": [USER, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]}]
    },
    "role developer": {"messages": [{"role": "developer", "content": "x"}]},
    "unknown role": {"messages": [{"role": "observer", "content": "x"}]},
    "image": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
    },
    "no message": {"messages": []},
    "temperature 3": {"temperature": 3},
    "top_p 0": {"top_p": 0},
    "max_tokens 0": {"max_tokens": 0},
    "n as text": {"n": "two"},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
}


@pytest.mark.parametrize("name", GOOD)
async def test_what_only_the_engine_can_judge_reaches_it(stage: Stage, name: str) -> None:
    call = await stage.ask(**GOOD[name])
    assert call.status == 200
    assert stage.calls(stage.replying) == 1


PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"max_tokens": 3, "messages": [USER]},
}


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_other_protocols_take_the_same_way(stage: Stage, path: str, stream: bool) -> None:
    call = await ask(stage.port, {"model": MODEL, "stream": stream, **PROTOCOLS[path]}, path)
    assert (call.status, call.end) == (200, End.CLEAN)
    assert call.headers["x-loadback-worker"]
    assert stage.calls(stage.replying) == 1
    await stage.settled()


async def test_errors_of_messages_have_its_own_shape(plain: Stage) -> None:
    call = await ask(plain.port, {"model": "nope", "max_tokens": 3, "messages": [USER]}, "/v1/messages")
    assert call.status == 404
    assert call.json["type"] == "error"
    assert call.error["type"] == "not_found_error"


# Engine endpoints that would let a client stop or empty somebody else's work, or that nothing here answers.
KEPT_BACK = [
    "/generate",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/tokenize",
    "/v1/some/new/path",
    "/flush_cache",
    "/abort_request",
]


@pytest.mark.parametrize("path", KEPT_BACK)
async def test_other_paths_are_not_passed_through(plain: Stage, path: str) -> None:
    call = await ask(plain.port, {"rid": "x", "model": MODEL}, path)
    assert call.status == 404
    assert set(call.error) == {"message", "type", "code", "param"}
    assert not [other for engine in plain.engines for other in engine.other if other.target == path]
    assert not [rid for engine in plain.engines for rid in engine.aborts]


async def test_the_wrong_method(plain: Stage) -> None:
    call = await get(plain.port, CHAT)
    assert (call.status, call.headers["allow"]) == (405, "POST")
    assert "POST" in call.error["message"]


async def test_health_models_and_metrics(stage: Stage) -> None:
    assert (await get(stage.port, "/healthz")).json == {"status": "ok"}
    assert (await get(stage.port, "/readyz")).status == 200
    models = (await get(stage.port, "/v1/models")).json
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert b"loadback_worker_ready" in (await get(stage.port, "/metrics")).body


GETS = ["/healthz", "/health", "/readyz", "/metrics", "/v1/models", f"/v1/models/{MODEL}", "/admin/workers", "/nowhere"]


@pytest.mark.parametrize("path", GETS)
async def test_head_is_get_without_its_body(plain: Stage, path: str) -> None:
    whole = await get(plain.port, path)
    reader, writer = await asyncio.open_connection("127.0.0.1", plain.port)
    for _ in range(2):
        writer.write(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 %d " % whole.status)
        assert b"content-type: " + whole.headers["content-type"].lower().encode() in head
        assert b"content-length: " in head
    writer.write_eof()
    writer.close()


ALLOWED = {
    "/healthz": "GET, HEAD",
    "/v1/kv/pins": "GET, HEAD, POST",
    "/v1/kv/prefetch": "POST, DELETE",
    "/admin/policy": "GET, HEAD, PUT",
    "/v1/messages": "POST",
}


@pytest.mark.parametrize("path", ALLOWED)
async def test_methods_that_are_allowed_are_told(plain: Stage, path: str) -> None:
    call = await get(plain.port, path, "PATCH")
    assert (call.status, call.headers["allow"]) == (405, ALLOWED[path])


async def test_not_ready_without_workers(make_stage: StageMaker, kind: str) -> None:
    """Also while only one role of a pair is there."""
    stage = await make_stage(kind)
    for worker in stage.gateway.fleet.workers[-len(stage.replying) :]:
        stage.gateway.fleet.remove(worker.worker_id)
    call = await get(stage.port, "/readyz")
    assert (call.status, bool(call.headers["retry-after"])) == (503, True)
    assert (await get(stage.port, "/healthz")).status == 200
