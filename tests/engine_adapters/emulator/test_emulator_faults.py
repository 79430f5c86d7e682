"""Faults on request, over real connections where they show on the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from emulator_pool import FAST, Emulated, unified
from loop_server import listening

from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.worker.faults import Fault, FaultKind, FaultPlan

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}


@pytest.fixture(params=[1_000.0])
async def emulated(request: pytest.FixtureRequest) -> AsyncIterator[Emulated]:
    """A worker of the speed asked for and a client that reaches it over a socket."""
    async with (
        unified(msgspec.structs.replace(FAST, speed=request.param)) as inside,
        listening(EmulatorApp(inside.worker)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10.0, verify=False) as http,
    ):
        yield Emulated(inside.worker, http)


async def inject(emulated: Emulated, **fault: Any) -> None:
    assert (await emulated.post("/_emulator/fault", fault)).status_code == 200


async def stats(emulated: Emulated) -> dict[str, Any]:
    found: dict[str, Any] = (await emulated.http.get("/_emulator/stats")).json()
    return found


async def until_active(emulated: Emulated, count: int) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (report := await stats(emulated))["active"] != count:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
    return report


def test_faults_are_taken_in_order_and_run_out() -> None:
    plan = FaultPlan()
    plan.add(Fault(FaultKind.E500, count=2))
    plan.add(Fault(FaultKind.DROP))
    taken = [plan.take() for _ in range(4)]
    assert [fault.kind if fault else None for fault in taken] == [FaultKind.E500, FaultKind.E500, FaultKind.DROP, None]
    assert plan.injected == 3


@pytest.mark.parametrize("status", [500, 503, 429, 400])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_status_faults(emulated: Emulated, status: int, path: str) -> None:
    await inject(emulated, kind=str(status))
    assert (await emulated.post(path, BODY)).status_code == status
    assert (await emulated.post(path, BODY)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_drop_closes_without_a_byte(emulated: Emulated, stream: bool) -> None:
    await inject(emulated, kind="drop")
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await emulated.post(CHAT, {**BODY, "stream": stream})


async def test_a_midcut_closes_a_stream_after_its_first_events(emulated: Emulated) -> None:
    await inject(emulated, kind="midcut", after_events=2)
    got: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        async with emulated.http.stream("POST", CHAT, json={**BODY, "stream": True}) as reply:
            got += [line async for line in reply.aiter_lines() if line]
    assert len(got) <= 2
    await inject(emulated, kind="midcut")
    with pytest.raises(httpx.RemoteProtocolError):
        await emulated.post(CHAT, BODY)


async def test_an_error_event_ends_a_stream_and_is_a_500_otherwise(emulated: Emulated) -> None:
    await inject(emulated, kind="sse_error", count=2)
    events = (await emulated.post(CHAT, {**BODY, "stream": True})).text.strip().split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "INTERNAL_SERVER_ERROR"
    assert events[-1] == "data: [DONE]"
    assert (await emulated.post(CHAT, BODY)).status_code == 500


async def test_a_hang_lasts_until_the_client_leaves(emulated: Emulated) -> None:
    await inject(emulated, kind="hang")
    asking = asyncio.create_task(emulated.post(CHAT, BODY))
    await until_active(emulated, 1)
    asking.cancel()
    report = await until_active(emulated, 0)
    assert (report["aborted"], report["finished"]) == (1, 0)
    assert asking.cancelled()


async def test_a_slow_reply_is_whole(emulated: Emulated) -> None:
    await inject(emulated, kind="slow", delay_ms=1)
    assert (await emulated.post(CHAT, BODY)).status_code == 200


@pytest.mark.parametrize("bad", [{"kind": "sulk"}, {"kind": "500", "count": 0}, {}])
async def test_an_unknown_fault_is_refused(emulated: Emulated, bad: dict[str, Any]) -> None:
    assert (await emulated.post("/_emulator/fault", bad)).status_code == 400


async def test_stats_tell_what_came_in_and_a_reset_forgets_it(emulated: Emulated) -> None:
    await emulated.http.post(CHAT, json={**BODY, "rid": "r1", "odd": 1}, headers={"x-marker": "here"})
    await emulated.post("/abort_request", {"rid": "r9"})
    await inject(emulated, kind="500")
    report = await stats(emulated)
    assert (report["requests"], report["active"], report["finished"]) == (1, 0, 1)
    assert json.loads(report["last_body"])["odd"] == 1
    assert ["x-marker", "here"] in report["last_headers"]
    assert report["abort_calls"] == ["r9"]
    assert (await emulated.http.post("/_emulator/reset")).json()["flushed"] is True
    assert (await stats(emulated))["requests"] == 0
    assert (await emulated.post(CHAT, BODY)).status_code == 200


@pytest.mark.parametrize("emulated", [2.0], indirect=True)
async def test_a_client_that_leaves_a_stream_frees_the_engine(emulated: Emulated) -> None:
    body = {**BODY, "stream": True, "max_tokens": 2_000, "ignore_eos": True}
    async with emulated.http.stream("POST", CHAT, json=body) as reply:
        async for line in reply.aiter_lines():
            if "content" in line:
                break
    for _ in range(1_000):
        if emulated.worker.driver.model.idle:
            break
        await asyncio.sleep(0.005)
    assert emulated.worker.driver.model.idle
    assert (await stats(emulated))["aborted"] == 1
