"""A gateway of the experiment's own, in its process and loop, and a client that streams from it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import msgspec

from router.app import build_app, build_routes
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.wire.serve import build_server

CLIENT = "bench"
_START_S = 30.0
_TURN_S = 600.0


class Reply(msgspec.Struct, frozen=True):
    """`ttft_ms`: from sending to the first event with content, as the client sees it."""

    text: str
    calls: list[dict[str, Any]]
    ttft_ms: float
    cached_by_tier: dict[str, int]
    worker: str

    @property
    def message(self) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        return made | ({"tool_calls": self.calls} if self.calls else {})


class GatewayHere:
    def __init__(self, gateway: Gateway, http: httpx.AsyncClient, model: str) -> None:
        self.gateway = gateway
        self._http = http
        self._model = model

    async def ask(self, messages: list[dict[str, Any]], key: str, **members: Any) -> Reply:
        """One greedy streamed turn. Raises `httpx.HTTPError`."""
        body = {"model": self._model, "messages": messages, "temperature": 0, "stream": True, **members}
        headers = {"x-session-id": key, "user-agent": f"{CLIENT}/1"}
        text, calls, first_ms, started = "", dict[int, dict[str, Any]](), None, time.monotonic()
        async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                delta = _delta(line)
                if first_ms is None and delta:
                    first_ms = 1000 * (time.monotonic() - started)
                text += delta.get("content") or ""
                _merge(calls, delta.get("tool_calls") or ())
        await self._settled()
        record = self.gateway.turns.records.newest(1)[0]
        tiers = (record.facts.cached_by_tier if record.facts is not None else None) or {}
        cached = {tier.name: count for tier, count in tiers.items() if count}
        return Reply(text, [calls[index] for index in sorted(calls)], first_ms or 0.0, cached, record.worker)

    async def _settled(self) -> None:
        """The prompt's names are made, so that its thread can be prefetched."""
        async with asyncio.timeout(_START_S):
            while self.gateway.extender.busy:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway_here(tree: dict[str, Any], model: str) -> AsyncIterator[GatewayHere]:
    """Ready: engines are discovered, their events followed, agents found. Raises TimeoutError."""
    gateway = Gateway(Config.model_validate(tree), system_clock, Random(1))
    routes = build_routes(gateway)
    server = build_server(build_app(gateway, routes), routes, port=0, drain_s=1.0, lifespan="on")
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(_START_S):
            while not (server.started and gateway.fleet.ready and _followed(gateway)):  # noqa: ASYNC110  they tell nobody
                await asyncio.sleep(0.02)
        base = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=base, timeout=_TURN_S, trust_env=False) as http:
            yield GatewayHere(gateway, http, model)
    finally:
        server.stop()
        await serving


def _followed(gateway: Gateway) -> bool:
    feeds = [feed for worker in gateway.fleet.workers for feed in gateway.monitor.feeds(worker.worker_id)]
    agents = gateway.tiers.followers.status() if gateway.prefetch.prefetcher.on else []
    known = all(worker.info is not None for worker in gateway.fleet.workers)
    return known and all(feed.state == "live" for feed in feeds) and all(agent.live for agent in agents)


def _delta(line: str) -> dict[str, Any]:
    choices = json.loads(line[6:]).get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return {name: value for name, value in delta.items() if name != "role" and value}


def _merge(calls: dict[int, dict[str, Any]], pieces: Any) -> None:
    for piece in pieces:
        call = calls.setdefault(piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = piece.get("id") or call["id"]
        for name, part in (piece.get("function") or {}).items():
            call["function"][name] += part or ""
