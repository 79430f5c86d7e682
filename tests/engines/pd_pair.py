"""One request to a real or emulated pair, both legs as the adapter edits them; and what their replies say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import msgspec

from costmodel.values import Role
from engine_adapters.adapters import adapter_for
from engine_adapters.base import Edit, Endpoint, EngineKind
from engine_adapters.sglang.adapter import SglangAdapter
from engine_adapters.sglang.rooms import fresh_room

SGLANG = SglangAdapter()
MODEL = "tiny-agent"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

assert isinstance(adapter_for(EngineKind.SGLANG), SglangAdapter)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.content)
        return parsed

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON of every `data:` line of a stream; `[DONE]` left out."""
        lines = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def usage(self) -> dict[str, Any]:
        """The whole reply's usage, from whichever place its API has for it; a stream's parts are merged."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            return dict(self.json["usage"])
        found: dict[str, Any] = {}
        for event in self.events:
            inner = event.get("response") or event.get("message") or event
            found |= inner.get("usage") or {}
        return found

    @property
    def details(self) -> bytes | None:
        """The raw `sglext`, if any."""
        chunks = self.events if self.headers["content-type"].startswith("text/event-stream") else [self.json]
        found = [chunk["sglext"] for chunk in chunks if chunk.get("sglext")]
        return msgspec.json.encode(found[-1]) if found else None

    @property
    def ids(self) -> set[str]:
        chunks = self.events if self.headers["content-type"].startswith("text/event-stream") else [self.json]
        return {chunk["id"] for chunk in chunks if "id" in chunk} | {c["response"]["id"] for c in chunks if "response" in c}


def body_for(path: str, prompt: str, *, tokens: int = 4, stream: bool = False, **more: object) -> dict[str, object]:
    """A request in `path`'s dialect."""
    common: dict[str, object] = {"model": MODEL, "temperature": 0, "stream": stream, **more}
    if path == COMPLETIONS:
        return common | {"prompt": prompt, "max_tokens": tokens}
    if path == RESPONSES:
        return common | {"input": prompt, "max_output_tokens": tokens}
    return common | {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}


def splice(body: dict[str, object], members: bytes) -> bytes:
    raw = json.dumps(body).encode()
    return raw[:-1] + b"," + members + b"}" if members else raw


async def send(http: httpx.AsyncClient, url: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    added = {name.decode(): value.decode() for name, value in headers}
    reply = await http.post(url, content=body, headers={"content-type": "application/json", **added})
    return Reply(reply.status_code, reply.headers, reply.content)


class Pair:
    """A prefill and a decode server that are asked together."""

    def __init__(self, http: httpx.AsyncClient, prefill: str, bootstrap_port: int, decode: str, rng: Random) -> None:
        self.http = http
        self.prefill = Endpoint(prefill)
        self.decode = Endpoint(decode)
        self.bootstrap_port = bootstrap_port
        self._rng = rng

    def rid(self, path: str) -> str:
        return SGLANG.request_id(path, f"{self._rng.getrandbits(128):032x}")

    def edit(self, path: str, body: dict[str, object], rid: str, leg: Role, room: int) -> Edit:
        return Edit(
            path=path,
            stream=bool(body.get("stream")),
            rid=rid,
            bootstrap_host="127.0.0.1",
            bootstrap_port=self.bootstrap_port,
            bootstrap_room=room,
            leg=leg,
        )

    async def ask(self, path: str, body: dict[str, object], rid: str | None = None) -> tuple[Reply, Reply]:
        """Both legs at once; (prefill's reply, decode's reply)."""
        prefill, decode = await asyncio.gather(*self.legs(path, body, rid or self.rid(path)))
        return prefill, decode

    def legs(
        self, path: str, body: dict[str, object], rid: str
    ) -> tuple[Coroutine[Any, Any, Reply], Coroutine[Any, Any, Reply]]:
        """The calls of both legs, to be awaited together: (prefill's, decode's)."""
        room = fresh_room(self._rng)
        return self._leg(self.prefill, Role.PREFILL, path, body, rid, room), self._leg(
            self.decode, Role.DECODE, path, body, rid, room
        )

    async def _leg(self, endpoint: Endpoint, leg: Role, path: str, body: dict[str, object], rid: str, room: int) -> Reply:
        edit = self.edit(path, body, rid, leg, room)
        return await send(self.http, endpoint.url + path, splice(body, SGLANG.members(edit)), SGLANG.headers(edit))

    async def abort(self, rid: str) -> None:
        for endpoint in (self.prefill, self.decode):
            await SGLANG.abort(self.http, endpoint, rid)

    async def busy(self) -> bool:
        """Whether either server still has something to do."""
        reports = [await SGLANG.read_loads(self.http, endpoint) for endpoint in (self.prefill, self.decode)]
        return any(
            load.running_requests or load.waiting_requests or load.waiting_uncached_tokens
            for loads in reports
            for load in loads
        )

    async def flush(self) -> None:
        for endpoint in (self.prefill, self.decode):
            await SGLANG.flush_cache(self.http, endpoint, timeout_s=30.0)
