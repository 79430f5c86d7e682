"""Emulated workers inside the test's own loop: a prefill and decode pair, or one that does both, without processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from loop_server import listening

from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.wire.app import EmulatorApp
from engine_adapters.emulator.wire.bootstrap import BootstrapApp
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.emulator.worker.worker import Worker

FAST = EngineParams(speed=1_000.0, kv_tokens=65_536, context_tokens=32_768)
rooms = itertools.count(1_000)


@dataclass
class Emulated:
    """One worker and a client that calls its application directly."""

    worker: Worker
    http: httpx.AsyncClient
    bootstrap_port: int = 0

    async def post(self, path: str, body: dict[str, Any], **kwargs: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **kwargs)


@dataclass
class Pair:
    prefill: Emulated
    decode: Emulated

    def paired(self, body: dict[str, Any], room: int | None = None) -> dict[str, Any]:
        """The body as a PD router sends it to both legs."""
        number = next(rooms) if room is None else room
        return {
            **body,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": number,
        }

    async def both(self, path: str, body: dict[str, Any], room: int | None = None) -> tuple[httpx.Response, httpx.Response]:
        sent = self.paired(body, room)
        prefill, decode = await asyncio.gather(self.prefill.post(path, sent), self.decode.post(path, sent))
        return prefill, decode


@asynccontextmanager
async def unified(params: EngineParams = FAST, **options: Any) -> AsyncIterator[Emulated]:
    async with _emulated(params, EngineRole.UNIFIED, options) as worker:
        yield worker


@asynccontextmanager
async def pair(prefill: EngineParams = FAST, decode: EngineParams = FAST, **options: Any) -> AsyncIterator[Pair]:
    async with (
        _emulated(prefill, EngineRole.PREFILL, options) as first,
        listening(BootstrapApp(first.worker)) as port,
        _emulated(decode, EngineRole.DECODE, options) as second,
    ):
        first.bootstrap_port = port
        yield Pair(first, second)


@asynccontextmanager
async def _emulated(params: EngineParams, role: EngineRole, options: dict[str, Any]) -> AsyncIterator[Emulated]:
    chosen = {"style": ReplyStyle(tool_rounds=1), "handshake_attempts": 1, "lost_peer_ms": 1.0, **options}
    worker = Worker(WorkerOptions(port=0, params=msgspec.structs.replace(params, role=role), **chosen))
    await worker.start()
    transport = httpx.ASGITransport(app=EmulatorApp(worker))  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://emulated", timeout=20.0) as http:
            yield Emulated(worker, http)
    finally:
        await worker.stop()
