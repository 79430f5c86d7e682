"""One request to a real prefill/decode pair: both legs, and what they say about the cache."""

from __future__ import annotations

import asyncio
import json
import time
from random import Random
from typing import Any

import httpx
import msgspec

from costmodel.values import Role, Tier
from engine_adapters.base import Edit, Endpoint, ReplyFacts
from engine_adapters.launch.pool import Pool, Server
from engine_adapters.sglang.adapter import SglangAdapter
from engine_adapters.sglang.rooms import fresh_room

_PATH = "/v1/completions"
_ADAPTER = SglangAdapter()
_HOST = "127.0.0.1"


class EngineFailed(Exception):
    """A leg answered with an error. The message is the engine's."""


class Completion(msgspec.Struct, frozen=True):
    """Cached tokens are those of the prefill leg, by where they came from."""

    text: str
    prompt_tokens: int
    cached_by_tier: dict[Tier, int]
    ttft_ms: float

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached_by_tier.values())


class Pairs:
    """Asks any prefill server of a pool together with its first decode server."""

    def __init__(self, http: httpx.AsyncClient, pool: Pool, rng: Random) -> None:
        self._http = http
        self._pool = pool
        self._rng = rng

    async def ask(self, prefill: int, prompt: list[int], new_tokens: int) -> Completion:
        """Greedy. Raises `EngineFailed`."""
        room = fresh_room(self._rng)
        rid = _ADAPTER.request_id(_PATH, f"{self._rng.getrandbits(128):032x}")
        body = {"model": self._pool.prefills[0].spec.model_name, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
        started_s = time.monotonic()
        legs = [(self._pool.prefills[prefill], Role.PREFILL), (self._pool.decodes[0], Role.DECODE)]
        first, second = await asyncio.gather(
            *(self._leg(server, self._body(body, leg, rid, room, prefill), started_s) for server, leg in legs)
        )
        facts = first.facts
        return Completion(second.text, facts.prompt_tokens, facts.cached_by_tier or {}, second.first_ms)

    async def flush(self) -> None:
        """Empty every server's own tiers."""
        for server in self._pool.servers:
            await _ADAPTER.flush_cache(self._http, Endpoint(server.url), timeout_s=30.0)

    def _body(self, body: dict[str, Any], leg: Role, rid: str, room: int, prefill: int) -> bytes:
        port = self._pool.prefills[prefill].spec.bootstrap_port
        edit = Edit(_PATH, True, rid, _HOST, port, room, leg=leg)
        return json.dumps({**body, "stream": True}).encode()[:-1] + b"," + _ADAPTER.members(edit) + b"}"

    async def _leg(self, server: Server, body: bytes, started_s: float) -> _Leg:
        found = _Leg(server.url)
        headers = {"content-type": "application/json"}
        async with self._http.stream("POST", server.url + _PATH, content=body, headers=headers) as reply:
            async for line in reply.aiter_lines():
                found.take(line, 1000 * (time.monotonic() - started_s))
            if reply.status_code != httpx.codes.OK:
                raise EngineFailed(f"{server.url}: status {reply.status_code}")
        return found


class _Leg:
    """What one leg's stream has said so far."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._usage: bytes = b"{}"
        self._details: bytes | None = None
        self.text = ""
        self.first_ms = 0.0

    @property
    def facts(self) -> ReplyFacts:
        return _ADAPTER.facts(self._usage, self._details)

    def take(self, line: str, now_ms: float) -> None:
        """Raises `EngineFailed`."""
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise EngineFailed(f"{self._url}: {event['error']}")
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if text and not self.text:
            self.first_ms = now_ms
        self.text += text
        if event.get("usage"):
            self._usage = json.dumps(event["usage"]).encode()
        if event.get("sglext"):
            self._details = json.dumps(event["sglext"]).encode()
