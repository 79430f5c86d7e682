"""One HTTP exchange on raw ASGI: the body in, the reply out, and the two ways a connection can die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TRANSPORT_KEY = "loadback.transport"  # set by the server's protocol class
EMULATOR_HEADER = (b"x-loadback-emulator", b"1")
MAX_BODY_BYTES = 256 << 20


class BodyTooLarge(Exception):
    """The body exceeds `MAX_BODY_BYTES`."""


class Exchange:
    """A request and its reply. `head` and what follows go out at once; nothing is buffered here."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, varies: bool = True) -> None:
        self._common = ((b"vary", b"Origin"), EMULATOR_HEADER) if varies else (EMULATOR_HEADER,)
        self.scope = scope
        self._receive = receive
        self._send = send
        self.started = False
        self.path: str = scope["path"]
        self.headers: tuple[tuple[str, str], ...] = tuple(
            (k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]
        )

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    async def body(self) -> bytes:
        """The whole body; raises BodyTooLarge and, when the client leaves before its end, ConnectionError."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("client left before its body was complete")
            part = message.get("body", b"")
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns once the client has left; only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def json(self, status: int, value: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        await self.reply(status, msgspec.json.encode(value), b"application/json", headers)

    async def text(self, status: int, text: str) -> None:
        await self.reply(status, text.encode(), b"text/plain; charset=utf-8")

    async def reply(
        self, status: int, body: bytes, content_type: bytes | None, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        typed = ((b"content-type", content_type),) if content_type else ()
        await self._head(status, (*typed, (b"content-length", str(len(body)).encode()), *headers))
        await self._send({"type": "http.response.body", "body": body})

    async def start_events(self, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        await self._head(200, (*headers, (b"content-type", b"text/event-stream; charset=utf-8")))

    async def event(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def cut_json(self, status: int, value: Any) -> None:
        """Send half of a body that was announced whole, then close."""
        body = msgspec.json.encode(value)
        await self._head(status, ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())))
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        self.close()

    def close(self) -> None:
        """Close the connection without finishing the reply."""
        transport: asyncio.Transport | None = self.scope.get(TRANSPORT_KEY)
        if transport is None:
            raise RuntimeError(f"{TRANSPORT_KEY} is not in the scope; serve with EmulatorProtocol")
        transport.close()

    async def _head(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._common]})
