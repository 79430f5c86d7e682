"""Turns that would be late are refused where their class says so: in every dialect, at once and out of a line alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_engine import MODEL, Script
from gateway_stage import PD, StageMaker
from raw_client import CHAT, Call, End, ask, send
from waiting import until

from router.fleet.hold import KEEP_TURNS

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    RESPONSES: {"input": "x"},
    MESSAGES: {"max_tokens": 3, "messages": [USER]},
}
CLASSES = {
    "never": {"ttft_ms": 0.001, "shed": True},  # less than any prefill takes
    "soon": {"ttft_ms": 300.0, "shed": True},
    "patient": {"ttft_ms": 0.001},
}
POLICY = {"objective": "slo", "slo": {"ttft_ms": 60_000.0}, "classes": CLASSES}
HOLDING = {"hold_ms": 0.001}  # any work that is predicted to be left
streamed = pytest.mark.parametrize("stream", [False, True])


def of_class(name: str) -> tuple[str, ...]:
    return (f"x-loadback-class: {name}",)


def body(path: str, *, stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "stream": stream, **BODIES[path]}


def refused(call: Call, path: str, name: str) -> None:
    assert (call.status, call.end, call.headers["content-type"]) == (503, End.CLEAN, "application/json")
    assert 1 <= int(call.headers["retry-after"]) <= 60
    error = call.error
    assert f"class '{name}'" in error["message"]
    assert "first token would come" in error["message"]
    if path == MESSAGES:
        assert (call.json["type"], error["type"]) == ("error", "overloaded_error")
    else:
        assert (error["type"], error["code"]) == ("overloaded_error", "deadline_out_of_reach")


@streamed
@pytest.mark.parametrize("path", BODIES)
async def test_a_turn_that_cannot_be_in_time_is_refused_at_once(
    make_stage: StageMaker, kind: str, path: str, stream: bool
) -> None:
    stage = await make_stage(kind, policy=POLICY)
    call = await ask(stage.port, body(path, stream=stream), path, of_class("never"))
    refused(call, path, "never")
    assert re.search(r"come \d+ ms after the 0\.001 ms", call.error["message"]), call.error["message"]
    assert stage.calls() == 0, "no engine heard of it"
    assert stage.gateway.metrics.shed["never"] == 1
    assert (await ask(stage.port, body(path, stream=stream), path, of_class("patient"))).status == 200
    assert (await ask(stage.port, body(path, stream=stream), path)).status == 200, "nor is one of no class shed"
    await stage.settled()


@streamed
@pytest.mark.parametrize("path", BODIES)
async def test_one_whose_time_runs_out_in_line_is_refused_there(
    make_stage: StageMaker, kind: str, path: str, stream: bool
) -> None:
    stage = await make_stage(kind, workers=1, policy=POLICY, admission=HOLDING)
    stage.script(stage.engines, Script(stay_after=0))
    first = stage.prefill if kind == PD else stage.replying
    running = [await stage.send(stream=True) for _ in range(KEEP_TURNS)]
    await first[0].called(KEEP_TURNS)
    hold = stage.gateway.dispatcher.holds["default"]
    held = await send(stage.port, body(path, stream=stream), path, of_class("soon"))
    await until(lambda: hold.held == 1, "it was in time, and is held")
    refused(await held.finish(), path, "soon")
    assert (hold.waiting, stage.calls(first)) == (0, KEEP_TURNS)
    assert stage.gateway.metrics.shed["soon"] == 1
    stage.go()
    for call in running:
        assert (await call.finish()).status == 200
    await stage.settled()


@pytest.mark.parametrize("path", BODIES)
async def test_a_full_queue_is_refused_as_such(make_stage: StageMaker, kind: str, path: str) -> None:
    """Another refusal than being late, and told apart by its status."""
    stage = await make_stage(kind, policy=POLICY, pool={"max_running_turns": 1}, admission={"queue_limit": 0})
    stage.script(stage.engines, Script(stay_after=0))
    first = stage.prefill if kind == PD else stage.replying
    running = await stage.send(stream=True)
    await until(lambda: stage.calls(first) == 1, "it runs")
    call = await ask(stage.port, body(path, stream=False), path, of_class("soon"))
    assert call.status == 429
    assert int(call.headers["retry-after"]) >= 1
    if path == MESSAGES:
        assert call.error["type"] == "rate_limit_error"
    else:
        assert call.error["code"] == "queue_full"
    stage.go()
    await running.finish()
    await stage.settled()
