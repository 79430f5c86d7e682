"""What an engine gets: the client's bytes with members spliced in before the last brace, its end-to-end headers in order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import MODEL, Received
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import CHAT, ask, send

pytestmark = pytest.mark.slow

# Spelled as no serialiser would: odd spacing, an escaped slash, a duplicate key, a big number, unknown members at every level.
BODY = (
    b'{ "messages" : [ {"role":"user","content":"hi \\u00e9 \\/ \\ud83d\\ude00", "x":[1,{"y":null}],'
    b'"cache_control":{"type":"ephemeral"}} ],\n'
    b'\t"seed":12345678901234567890123, "temperature":1.0e0,"temperature":1E+0,"custom_params":{"a":1.10},"model":"'
    + MODEL.encode()
    + b'",\r\n'
    b'"priority" : 2,"x_unknown":true, "tools":[], "stream":%b }'
)


def spliced(call: Received, sent: bytes) -> dict[str, Any]:
    """The members that were added; fails unless everything else is as it was sent."""
    kept = sent.rstrip()[:-1]
    assert call.body.startswith(kept)
    addition = call.body[len(kept) :]
    assert addition.startswith(b",")
    assert addition.endswith(b"}")
    added: dict[str, Any] = json.loads(b"{" + addition[1:])
    return added


def legs_of(stage: Stage) -> dict[str, Received]:
    """The one call that each role got."""
    roles = {"prefill": stage.prefill, "reply": stage.replying} if stage.prefill else {"reply": stage.replying}
    found = {role: [call for engine in engines for call in engine.calls] for role, engines in roles.items()}
    assert {role: len(calls) for role, calls in found.items()} == dict.fromkeys(roles, 1)
    return {role: calls[0] for role, calls in found.items()}


@pytest.mark.parametrize("stream", [True, False])
async def test_the_body_is_verbatim_but_for_spliced_members(stage: Stage, stream: bool) -> None:
    body = BODY % (b"true" if stream else b"false")
    assert (await ask(stage.port, body)).status == 200
    legs = legs_of(stage)
    expected = {"rid", "return_cached_tokens_details"}
    expected |= {"stream_options"} if stream else set()
    expected |= {"bootstrap_host", "bootstrap_port", "bootstrap_room"} if stage.prefill else set()
    added = {role: spliced(call, body) for role, call in legs.items()}
    assert {role: set(members) for role, members in added.items()} == dict.fromkeys(legs, expected)
    assert len({members["rid"] for members in added.values()}) == 1


async def test_both_legs_meet_in_one_room(pd: Stage) -> None:
    assert (await pd.ask()).status == 200
    prefill = next(engine for engine in pd.prefill if engine.calls)
    legs = legs_of(pd)
    assert legs["prefill"].body == legs["reply"].body
    assert legs["reply"].json["bootstrap_host"] == "127.0.0.1"
    assert legs["reply"].json["bootstrap_port"] == 8998
    assert 1 <= legs["reply"].json["bootstrap_room"] < 2**63
    assert prefill.calls[0].header("host") == f"127.0.0.1:{prefill.port}"


async def test_a_large_body_arrives_whole(stage: Stage) -> None:
    text = "line of code\\n" * 60_000
    body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (MODEL.encode(), text.encode())
    assert (await ask(stage.port, body)).status == 200
    for call in legs_of(stage).values():
        spliced(call, body)
        assert call.header("content-length") == str(len(call.body))


async def test_trailing_white_space_is_dropped(plain: Stage) -> None:
    assert (await ask(plain.port, BODY % b"false" + b" \r\n\t ")).status == 200
    assert legs_of(plain)["reply"].body.endswith(b"}")


async def test_the_clients_own_stream_options_are_kept(stage: Stage) -> None:
    options = {"continuous_usage_stats": True}
    call = await stage.ask(stream=True, stream_options=options)
    assert b'"usage":{' not in call.body
    for leg in legs_of(stage).values():
        assert leg.json["stream_options"] == {**options, "include_usage": True}


async def test_usage_that_was_asked_for_is_left_alone(stage: Stage) -> None:
    call = await stage.ask(stream=True, stream_options={"include_usage": True})
    assert b'"usage":{"prompt_tokens":7' in call.body
    for leg in legs_of(stage).values():
        assert leg.body.count(b"stream_options") == 1


async def test_headers_keep_their_order_and_hop_by_hop_ones_end_here(stage: Stage) -> None:
    headers = (
        "X-Second: 2",
        "Authorization: Bearer client-key",
        "x-first: 1",
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Proxy-Authorization: Basic x",
        "User-Agent: ua/1",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Session-Id: s1",
        "X-Twice: a",
        "X-Twice: b",
    )
    assert (await ask(stage.port, stage.body(), headers=headers)).status == 200
    for call in legs_of(stage).values():
        names = [line.partition(b":")[0].lower() for line in call.header_lines]
        assert names == [
            b"host",
            b"content-type",
            b"x-second",
            b"authorization",
            b"x-first",
            b"user-agent",
            b"traceparent",
            b"x-session-id",
            b"x-twice",
            b"x-twice",
            b"content-length",
        ]
        assert call.header("authorization") == "Bearer client-key"
        assert [line for line in call.header_lines if line.startswith(b"x-twice")] == [b"x-twice: a", b"x-twice: b"]


async def test_path_and_query_are_kept(plain: Stage) -> None:
    assert (await ask(plain.port, plain.body(max_tokens=5), "/v1/messages?beta=true")).status == 200
    assert legs_of(plain)["reply"].target == "/v1/messages?beta=true"


async def test_reply_headers_come_back(stage: Stage) -> None:
    call = await stage.ask(stream=True)
    assert call.headers["x-engine"] == "fake"
    assert "server" not in call.headers
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert call.headers["x-loadback-request-id"].startswith("lb-")
    assert call.headers["x-loadback-thread"]
    assert float(call.headers["x-loadback-predicted-ms"]) > 0
    names = {f"127.0.0.1:{engine.port}" for engine in stage.engines if engine.calls}
    assert set(call.headers["x-loadback-worker"].split(">")) == names


async def test_the_gateways_own_keys_go_nowhere(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, auth={"api_keys": ["gateway-key"], "admin_token": "admin-key"})
    for headers in (("Authorization: Bearer gateway-key",), ("X-Api-Key: gateway-key", "X-Other: 1")):
        assert (await ask(stage.port, stage.body(), headers=headers)).status == 200
    for engine in stage.engines:
        for call in (*engine.calls, *engine.other):
            assert b"gateway-key" not in call.head + call.body
            assert b"admin-key" not in call.head + call.body


async def test_each_engine_gets_its_own_key(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, worker={"api_key": "engine-key", "admin_key": "engine-admin-key"})
    assert (await ask(stage.port, stage.body(), headers=("Authorization: Bearer client-key",))).status == 200
    call = legs_of(stage)["reply"]
    assert [line for line in call.header_lines if b"uthorization" in line] == [b"authorization: Bearer engine-key"]
    assert b"client-key" not in call.head


@pytest.mark.parametrize(
    "headers", [(), ("Authorization: Bearer wrong",), ("X-Api-Key: wrong",)], ids=["none", "bearer", "x-api-key"]
)
async def test_without_the_key_nothing_is_sent(make_stage: StageMaker, headers: tuple[str, ...]) -> None:
    stage = await make_stage(PLAIN, auth={"api_keys": ["gateway-key"]})
    call = await ask(stage.port, stage.body(), headers=headers)
    assert call.status == 401
    assert call.error["code"] == "invalid_api_key"
    assert stage.calls() == 0
    models = await (await send(stage.port, b"", "/v1/models", headers, "GET")).finish()
    assert models.status == 401


RESERVED = {
    "rid": '"mine"',
    "bootstrap_host": '"evil"',
    "bootstrap_port": "1",
    "bootstrap_room": "1",
    "routed_dp_rank": "0",
    "data_parallel_rank": "0",
}


@pytest.mark.parametrize("key", RESERVED)
async def test_reserved_keys_are_refused(stage: Stage, key: str) -> None:
    body = b'{"model":"%b","%b":%b,"messages":[{"role":"user","content":"x"}]}'
    call = await ask(stage.port, body % (MODEL.encode(), key.encode(), RESERVED[key].encode()))
    assert call.status == 400
    assert call.error["param"] == key
    assert stage.calls() == 0


async def test_reserved_keys_deeper_down_are_the_clients_business(stage: Stage) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"rid": {"type": "string"}}}}}
    assert (await stage.ask(tools=[tool], metadata={"bootstrap_room": 1})).status == 200


async def test_headers_that_would_override_the_body_are_not_sent_on(stage: Stage) -> None:
    headers = ("X-Override-Rid: mine", "X-Override-Bootstrap-Room: 7", "X-Data-Parallel-Rank: 3")
    assert (await ask(stage.port, stage.body(), CHAT, headers)).status == 200
    for call in legs_of(stage).values():
        assert not [line for line in call.header_lines if b"override" in line.lower() or b"parallel" in line.lower()]
