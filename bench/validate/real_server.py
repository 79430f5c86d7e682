"""The real server: one call to it, and a replay of sessions on it in real time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.replay.wall_clock import WallReplay
from bench.simulate.clients import Ask
from bench.simulate.workload import Call, SessionPlan
from bench.validate.scaled import prompt_ids
from bench.validate.timed import Timed

_CALL_S = 120.0
_JSON = {"content-type": "application/json"}


class ReplayFailed(Exception):
    """The server did not answer a call as it should. The message is its own."""


class RealServer:
    """Greedy streamed completions of token ids, each as long as the trace says. Another `salt`, another prompt."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str) -> None:
        self._http = http
        self._url = url
        self._model = model

    async def complete(self, call: Call, salt: int) -> tuple[float, float, int]:
        """TTFT and end-to-end in ms, cached prompt tokens. Raises `ReplayFailed`."""
        body = {
            "model": self._model, "prompt": prompt_ids(call, salt), "max_tokens": call.output_tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        content = json.dumps(body).encode()
        started_s = time.monotonic()
        first_s, cached = 0.0, 0
        async with (
            asyncio.timeout(_CALL_S),
            self._http.stream("POST", f"{self._url}/v1/completions", content=content, headers=_JSON) as reply,
        ):
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                first_s = first_s or time.monotonic()
                cached = _cached(json.loads(line[6:]), cached)
            if reply.status_code != httpx.codes.OK:
                raise ReplayFailed(f"{self._url}: status {reply.status_code}")
        ended_s = time.monotonic()
        return 1000 * (first_s - started_s), 1000 * (ended_s - started_s), cached

    async def replay(self, plans: Iterator[SessionPlan], concurrency: int, ramp_ms: float, salt: int) -> list[Timed]:
        """In the order in which calls ended. Raises `ReplayFailed` and `httpx.HTTPError`."""

        async def send(ask: Ask, sent_ms: float) -> Timed:
            ttft_ms, e2e_ms, cached = await self.complete(ask.call, salt)
            return Timed(ask.thread_id, ask.index, ask.call, sent_ms, ttft_ms, e2e_ms, cached)

        return await WallReplay(send).run(plans, concurrency, ramp_ms)


def _cached(event: dict[str, Any], before: int) -> int:
    if "error" in event:
        raise ReplayFailed(str(event["error"]))
    usage = event.get("usage")
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0) if usage else before
