"""A client over a bare socket, so that tests see exactly what was sent and how the connection ended."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from waiting import DEADLINE_S

CHAT = "/v1/chat/completions"


class End(Enum):
    CLEAN = "clean"  # the message ended as its framing says
    BROKEN = "broken"  # reset, or closed in the middle


@dataclass(slots=True)
class Call:
    """One request that has been sent. Read it to the end with `finish`, or in steps."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    end: End | None = None
    _received: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> bytes:
        """Without transfer coding."""
        return bytes(self._received)

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object."""
        value: dict[str, Any] = self.json["error"]
        return value

    @property
    def events(self) -> list[bytes]:
        return [block for block in self.body.split(b"\n\n") if block]

    async def head(self) -> Call:
        if self.status:
            return self
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")[:-2]
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return self

    async def until_body(self, marker: bytes) -> Call:
        """Read until the body holds `marker`."""
        await self.head()
        async with asyncio.timeout(DEADLINE_S):
            while marker not in self._received:
                assert await self._chunk(), f"the reply ended before {marker!r}: {self.body[-300:]!r}"
        return self

    async def finish(self, within_s: float = DEADLINE_S) -> Call:
        """Read to the end, however it comes."""
        try:
            async with asyncio.timeout(within_s):
                await self._rest()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.end = End.BROKEN
        await self.close()
        return self

    async def leave(self) -> None:
        """Close the connection without reading further."""
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _rest(self) -> None:
        await self.head()
        if "content-length" in self.headers:
            self._received += await self.reader.readexactly(int(self.headers["content-length"]))
            self.end = End.CLEAN
            return
        assert self.headers.get("transfer-encoding") == "chunked", self.headers
        while await self._chunk():
            pass
        self.end = End.CLEAN

    async def _chunk(self) -> bool:
        """False at the last chunk."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        self._received += data[:-2]
        return size > 0


async def send(
    port: int, body: bytes | dict[str, Any], path: str = CHAT, headers: tuple[str, ...] = (), method: str = "POST"
) -> Call:
    """Open a connection and send one request on it. `headers` are whole lines."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: gateway",
        "Content-Type: application/json",
        *headers,
        f"Content-Length: {len(raw)}",
    ]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
    await writer.drain()
    return Call(reader, writer)


async def ask(port: int, body: bytes | dict[str, Any], path: str = CHAT, headers: tuple[str, ...] = ()) -> Call:
    """The whole exchange."""
    return await (await send(port, body, path, headers)).finish()
