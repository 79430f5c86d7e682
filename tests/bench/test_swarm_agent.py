"""Threads against a scripted gateway: history, tools, bursts, idling, retries and failures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest

from bench.swarm.agent import Agent
from bench.swarm.plan import Shape, ThreadPlan, plan_swarm
from bench.swarm.turns import TurnRecord

Handler = Callable[[dict[str, Any]], httpx.Response]


def sse(*events: dict[str, Any], done: bool = True) -> httpx.Response:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    headers = {
        "x-loadback-request-id": "r1",
        "x-loadback-worker": "p0>d0",
        "x-loadback-predicted-ms": "12.5",
        "content-type": "text/event-stream",
    }
    return httpx.Response(200, headers=headers, text=text)


def answer(text: str, prompt: int = 100, cached: int | None = 40) -> httpx.Response:
    usage = {"prompt_tokens": prompt, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
    return sse(
        {"choices": [{"delta": {"content": text}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    )


def tool_call(name: str) -> httpx.Response:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return sse({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})


class Recorder:
    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.turns: list[TurnRecord] = []

    def on_state(self, plan: ThreadPlan, state: str) -> None:
        self.states.append((plan.name, state))

    def on_turn(self, record: TurnRecord) -> None:
        self.turns.append(record)


class Bench:
    """An agent wired to a handler and to a clock that only its own sleeps move."""

    def __init__(self, handler: Handler, shape: Shape) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.slept: list[float] = []
        self.watcher = Recorder()
        self._handler = handler
        transport = httpx.MockTransport(self._handle)
        http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
        self.agent = Agent(http, "tiny", shape, self.watcher, lambda: sum(self.slept), self._sleep)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        return self._handler(self.bodies[-1])

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def plan_of(shape: Shape) -> ThreadPlan:
    return replace(plan_swarm(shape, random.Random(5))[0], start_after_s=0.0)


async def test_history_only_grows_and_tool_calls_are_answered() -> None:
    shape = Shape(sessions=1, turns=4, subagents=0)
    replies = iter([tool_call("bash"), answer("done"), tool_call("search"), answer("bye")])
    bench = Bench(lambda _: next(replies), shape)
    assert await bench.agent.run(replace(plan_of(shape), idle_before_turn=None)) == "bye"
    histories = [body["messages"] for body in bench.bodies]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(histories))
    assert [message["role"] for message in histories[-1]] == [
        "system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool",
    ]  # fmt: skip
    assert histories[-1][3]["tool_call_id"] == "c1"
    assert bench.slept.count(shape.tool_wait_s) == 2
    assert all(body["stream_options"] == {"include_usage": True} and body["tools"] for body in bench.bodies)


async def test_records_carry_headers_usage_and_first_call() -> None:
    shape = Shape(sessions=1, turns=2, subagents=0)
    bench = Bench(lambda _: answer("ok", prompt=100, cached=40), shape)
    await bench.agent.run(plan_of(shape))
    first, second = bench.agent.turns
    assert bench.watcher.turns == bench.agent.turns
    assert (first.first_call, second.first_call) == (True, False)
    assert (first.worker, first.request_id, first.predicted_ms) == ("p0>d0", "r1", 12.5)
    assert (first.prompt_tokens, first.cached_tokens, first.error) == (100, 40, None)


async def test_burst_runs_subagents_and_appends_their_reports() -> None:
    shape = Shape(sessions=2, turns=3, subagents=3, subagent_turns=2)
    bench = Bench(lambda body: answer(f"report {len(body['messages'])}"), shape)
    await bench.agent.run(plan_of(shape))
    assert len(bench.agent.turns) == 3 + 3 * 2
    assert {turn.thread for turn in bench.agent.turns} == {"s1", "s1.1", "s1.2", "s1.3"}
    last = [body["messages"] for body in bench.bodies][-1]
    assert any("report 4 / report 4 / report 4" in message["content"] for message in last if message["role"] == "user")


async def test_idling_makes_a_first_call() -> None:
    shape = Shape(sessions=3, turns=4, idle_s=9.0)
    bench = Bench(lambda _: answer("ok"), shape)
    await bench.agent.run(replace(plan_swarm(shape, random.Random(5))[-1], start_after_s=0.0))
    assert [turn.first_call for turn in bench.agent.turns] == [True, False, True, False]
    assert 9.0 in bench.slept


async def test_retry_after_is_honoured_then_given_up() -> None:
    shape = Shape(sessions=1, turns=1, subagents=0)
    busy = httpx.Response(503, headers={"retry-after": "2"}, json={"error": {"message": "no capacity"}})
    replies = iter([busy, answer("ok")])
    bench = Bench(lambda _: next(replies), shape)
    await bench.agent.run(plan_of(shape))
    assert (bench.agent.turns[0].tries, bench.agent.turns[0].error) == (2, None)
    assert 2.0 in bench.slept

    bench = Bench(lambda _: busy, shape)
    await bench.agent.run(plan_of(shape))
    assert bench.agent.turns[0].tries == 5
    assert "no capacity" in (bench.agent.turns[0].error or "")


@pytest.mark.parametrize(
    "failure",
    [
        lambda: httpx.Response(502, json={"error": {"message": "engine died"}}),
        lambda: sse({"error": {"message": "prefill lost"}}),
        lambda: sse({"choices": [{"delta": {"content": "half"}}]}, done=False),
    ],
    ids=["status", "error event", "cut"],
)
async def test_a_failed_turn_is_an_error_and_ends_its_thread(failure: Callable[[], httpx.Response]) -> None:
    shape = Shape(sessions=1, turns=3, subagents=0)
    replies = iter([answer("ok"), failure()])
    bench = Bench(lambda _: next(replies), shape)
    await bench.agent.run(plan_of(shape))
    assert [turn.error is None for turn in bench.agent.turns] == [True, False]
