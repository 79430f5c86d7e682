"""A tap between a client and the gateway: passes bytes both ways as they are, keeps them, and reads them as HTTP afterwards.

It looks at nothing while they pass, so that closing, keep-alive and streaming are the gateway's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Message:
    """One HTTP request or reply; an answer that never came is empty."""

    start: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpExchange:
    method: str
    path: str  # without the query
    request: Message
    reply: Message

    @property
    def status(self) -> int:
        return int(self.reply.start.split(" ")[1]) if self.reply.start else 0

    def json(self) -> dict[str, Any]:
        value = json.loads(self.request.body)
        assert isinstance(value, dict)
        return value


@dataclass(slots=True)
class _Wire:
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


class Wiretap:
    def __init__(self, gateway_port: int) -> None:
        self._gateway_port = gateway_port
        self._wires: list[_Wire] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def exchanges(self) -> list[HttpExchange]:
        """All of them, by connection; call it when the client is gone."""
        return [exchange for wire in self._wires for exchange in _read(wire)]

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """One connection of the client, until both sides have ended it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        wire = _Wire()
        self._wires.append(wire)
        gateway_in, gateway_out = await asyncio.open_connection("127.0.0.1", self._gateway_port)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass_on(client_in, gateway_out, wire.sent))
            group.create_task(_pass_on(gateway_in, client_out, wire.received))

    async def close(self) -> None:
        """Drop what is still open; the client is gone by then."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray) -> None:
    """Until the source ends. A reset of either side closes the other: an abort stays an abort."""
    try:
        while piece := await source.read(_PIECE_BYTES):
            kept += piece
            target.write(piece)
            await target.drain()
    except OSError:
        target.transport.abort()
    finally:
        target.close()


@asynccontextmanager
async def tap_of(gateway_port: int) -> AsyncIterator[Wiretap]:
    tap = Wiretap(gateway_port)
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    try:
        yield tap
    finally:
        server.close()
        await tap.close()


def _read(wire: _Wire) -> list[HttpExchange]:
    sent, received = _Stream(bytes(wire.sent)), _Stream(bytes(wire.received))
    exchanges = []
    while (request := sent.message()) is not None:
        method, target, *_ = request.start.split(" ")
        reply = received.message(bodiless=method == "HEAD") or Message()
        exchanges.append(HttpExchange(method, target.partition("?")[0], request, reply))
    return exchanges


class _Stream:
    """Cuts one direction of a connection into messages; the last may be cut off."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def message(self, *, bodiless: bool = False) -> Message | None:
        if b"\r\n\r\n" not in self._data:
            return None
        line, *fields = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if bodiless:
            return Message(line, headers)
        if "chunked" in headers.get("transfer-encoding", ""):
            return Message(line, headers, self._chunked())
        return Message(line, headers, self._take(int(headers.get("content-length", 0))))

    def _chunked(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n") or b"0", 16):
            body += self._take(size)
            self._until(b"\r\n")
        self._until(b"\r\n")
        return body

    def _take(self, count: int) -> bytes:
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def _until(self, mark: bytes) -> bytes:
        taken, _, self._data = self._data.partition(mark)
        return taken
