"""One streamed chat call to a router, and what its client saw."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import msgspec

from bench.placement.chats import Message
from engine_adapters.sglang.adapter import SglangAdapter

_TURN_S = 60.0


class Turn(msgspec.Struct, frozen=True):
    """Times in ms. `first_call`: the session's first, or its first since a worker was taken out. `error` is empty when all went
    well."""

    session: str
    index: int
    sent_ms: float
    first_call: bool
    ttft_ms: float = 0.0
    e2e_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_by_tier: dict[str, int] = {}
    error: str = ""


class ChatClient:
    """Speaks to whatever router listens at `url`."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str) -> None:
        self._http = http
        self._url = url
        self._model = model

    async def ask(self, messages: list[Message], tokens: int, turn: Turn) -> Turn:
        """`turn` with what the reply told. Errors of router or engine are told in it, not raised."""
        body = {
            "model": self._model, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}, "return_cached_tokens_details": True,
        }  # fmt: skip
        heard, started_s = _Heard(), time.monotonic()
        try:
            async with (
                asyncio.timeout(_TURN_S),
                self._http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as reply,
            ):
                if reply.status_code != httpx.codes.OK:
                    return msgspec.structs.replace(turn, error=f"{reply.status_code}: {(await reply.aread())[:200]!r}")
                async for line in reply.aiter_lines():
                    heard.take(line, 1000 * (time.monotonic() - started_s))
        except (httpx.HTTPError, TimeoutError) as error:
            return msgspec.structs.replace(turn, error=f"{type(error).__name__}: {error}")
        return heard.told(turn, 1000 * (time.monotonic() - started_s))


class _Heard:
    """What one stream has said so far."""

    def __init__(self) -> None:
        self._first_ms = 0.0
        self._usage: bytes = b"{}"
        self._details: bytes | None = None
        self._error = ""

    def take(self, line: str, now_ms: float) -> None:
        if not line.startswith("data: {"):
            return
        event: dict[str, Any] = json.loads(line[6:])
        self._error = self._error or str(event.get("error") or "")
        if not self._first_ms and any(choice["delta"].get("content") for choice in event.get("choices") or ()):
            self._first_ms = now_ms
        if event.get("usage"):
            self._usage = json.dumps(event["usage"]).encode()
        if event.get("sglext"):
            self._details = json.dumps(event["sglext"]).encode()

    def told(self, turn: Turn, now_ms: float) -> Turn:
        facts = _ADAPTER.facts(self._usage, self._details)
        tiers = {tier.name: tokens for tier, tokens in (facts.cached_by_tier or {}).items()}
        error = self._error or ("" if self._first_ms else "no token came")
        return msgspec.structs.replace(
            turn, ttft_ms=self._first_ms, e2e_ms=now_ms, prompt_tokens=facts.prompt_tokens,
            cached_tokens=facts.cached_tokens or 0, cached_by_tier=tiers, error=error,
        )  # fmt: skip


_ADAPTER = SglangAdapter()
