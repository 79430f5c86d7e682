"""One thread of an agent: call the model, run the tools that it asks for, append, call again.

It keeps an append-only history like the CLIs it stands for, honours `Retry-After` on 429 and 503, and never edits what was
said.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from bench.swarm.plan import Shape, ThreadPlan, tool_result
from bench.swarm.reply import BrokenReply, Reply, Usage
from bench.swarm.turns import TurnRecord

MAX_TRIES = 5
MAX_RETRY_AFTER_S = 10.0


class Watcher(Protocol):
    """Sees the swarm at work, for a live display."""

    def on_state(self, plan: ThreadPlan, state: str) -> None: ...

    def on_turn(self, record: TurnRecord) -> None: ...


@dataclass(slots=True)
class Agent:
    """What all threads of a swarm share."""

    http: httpx.AsyncClient  # its base_url is the gateway
    model: str
    shape: Shape
    watcher: Watcher
    clock_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    turns: list[TurnRecord] = field(default_factory=list)

    async def run(self, plan: ThreadPlan) -> str:
        """Hold the whole conversation; returns the last answer. Stops early after a turn that failed for good."""
        rng = random.Random(plan.name)
        await self.sleep(plan.start_after_s)
        prompts = iter(plan.prompts)
        messages: list[dict[str, Any]] = [{"role": "system", "content": plan.system}, _user(next(prompts))]
        answer = ""
        for number in range(plan.turns):
            first = await self._idle(plan, number)
            reply = await self._turn(plan, number, first, messages)
            if reply is None:
                break
            answer = reply.text
            messages.append(reply.as_message())
            messages.extend(await self._follow_up(plan, number, reply, prompts, rng))
        self.watcher.on_state(plan, "done")
        return answer

    async def _idle(self, plan: ThreadPlan, number: int) -> bool:
        if number == plan.idle_before_turn:
            self.watcher.on_state(plan, "idle")
            await self.sleep(self.shape.idle_s)
        return number in (0, plan.idle_before_turn)

    async def _follow_up(
        self, plan: ThreadPlan, number: int, reply: Reply, prompts: Any, rng: random.Random
    ) -> list[dict[str, Any]]:
        """What the agent adds before its next call: tool results, then its subagents' reports or the user's next words."""
        added = []
        if reply.tool_calls:
            self.watcher.on_state(plan, "tool")
            await self.sleep(self.shape.tool_wait_s)
            added = [_tool_message(call.id, tool_result(call.name, self.shape, rng)) for call in reply.tool_calls]
        if number == plan.burst_after_turn:
            self.watcher.on_state(plan, "subagents")
            return [*added, _user("Reports of the subagents: " + " / ".join(await self._burst(plan)))]
        return added or [_user(next(prompts, "Go on."))]

    async def _burst(self, plan: ThreadPlan) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.run(child)) for child in plan.subagents]
        return [task.result() for task in tasks]

    async def _turn(self, plan: ThreadPlan, number: int, first: bool, messages: list[dict[str, Any]]) -> Reply | None:
        self.watcher.on_state(plan, "waiting")
        blank = TurnRecord(plan.session, plan.name, number, first, started_s=self.clock_s())
        body = self._body(plan, messages)
        for tries in range(1, MAX_TRIES + 1):
            started_s = self.clock_s()
            record, reply, wait_s = await self._try(body, replace(blank, tries=tries), started_s)
            if wait_s is None or tries == MAX_TRIES:
                break
            await self.sleep(min(wait_s, MAX_RETRY_AFTER_S))
        self.turns.append(record)
        self.watcher.on_turn(record)
        return reply

    async def _try(
        self, body: dict[str, Any], record: TurnRecord, started_s: float
    ) -> tuple[TurnRecord, Reply | None, float | None]:
        """One request; the third value is how long to wait before trying again, None when that is the end of it."""
        reply = Reply()
        try:
            async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
                record = _with_headers(record, response.headers)
                if response.status_code != 200:
                    return await _refused(record, response)
                async for line in response.aiter_lines():
                    if reply.feed(line) and record.ttft_ms is None:
                        record = replace(record, ttft_ms=(self.clock_s() - started_s) * 1000)
            reply.finish()
        except (httpx.HTTPError, BrokenReply) as error:
            return replace(record, error=f"{type(error).__name__}: {error}"), None, None
        total_ms = (self.clock_s() - started_s) * 1000
        return _with_usage(replace(record, total_ms=total_ms, tool_calls=len(reply.tool_calls)), reply.usage), reply, None

    def _body(self, plan: ThreadPlan, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "tools": plan.tools,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.shape.max_tokens,
            "temperature": 0,
        }
        return body | ({"prompt_cache_key": plan.cache_key} if plan.cache_key else {})


async def _refused(record: TurnRecord, response: httpx.Response) -> tuple[TurnRecord, None, float | None]:
    body = (await response.aread()).decode(errors="replace")
    retry_after = response.headers.get("retry-after", "")
    wait_s = float(retry_after) if response.status_code in (429, 503) and retry_after.isdigit() else None
    return replace(record, error=f"HTTP {response.status_code}: {body[:300]}"), None, wait_s


def _with_headers(record: TurnRecord, headers: httpx.Headers) -> TurnRecord:
    predicted = headers.get("x-loadback-predicted-ms")
    return replace(
        record,
        request_id=headers.get("x-loadback-request-id", ""),
        worker=headers.get("x-loadback-worker", ""),
        predicted_ms=float(predicted) if predicted else None,
    )


def _with_usage(record: TurnRecord, usage: Usage | None) -> TurnRecord:
    if usage is None:
        return record
    details = usage.prompt_tokens_details
    return replace(
        record,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=details.cached_tokens if details else None,
    )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _tool_message(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}
