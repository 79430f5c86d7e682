"""What is decided before FastAPI reads a body: who may speak to a path behind a door, and what a body may be.

FastAPI parses a body before it asks what its routes depend on, so that a door among those would be opened by parsing.
HEAD is answered here as GET is, without the body: load balancers probe with it.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.errors import BodyTooLarge, GatewayError
from router.turn.handler import refuse_encoded

Check = Callable[[Request], None]
Refuse = Callable[[str, GatewayError], Response]  # path and error to the reply


class Guard:
    """`doors` maps the first part of a path ("/admin") to what must not raise for a request to be let in."""

    def __init__(self, app: ASGIApp, doors: dict[str, Check], max_body_bytes: int, refuse: Refuse) -> None:
        self._app = app
        self._doors = doors
        self._max_body_bytes = max_body_bytes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._look(Request(scope))
        except GatewayError as error:
            await self._refuse(scope["path"], error)(scope, receive, send)
            return
        answer = _Answer(send, bodiless=scope["method"] == "HEAD")
        if answer.bodiless:
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, self._counted(receive), answer)
        except BodyTooLarge as error:
            if answer.begun:
                raise
            await self._refuse(scope["path"], error)(scope, receive, send)

    def _look(self, request: Request) -> None:
        check = self._doors.get("/" + request.url.path.lstrip("/").partition("/")[0])
        if check is not None:
            check(request)
        length = request.headers.get("content-length", "0")
        if length != "0" or "transfer-encoding" in request.headers:
            refuse_encoded(request.headers.raw)
        if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > self._max_body_bytes:
            raise BodyTooLarge.beyond(self._max_body_bytes)

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise BodyTooLarge.beyond(self._max_body_bytes)
            return message

        return counted


class _Answer:
    """Passes on what is sent, without the body where none is wanted, and knows whether anything was."""

    def __init__(self, send: Send, bodiless: bool) -> None:
        self._send = send
        self.bodiless = bodiless
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self.begun = True
        if self.bodiless and "body" in message:
            message = {**message, "body": b""}
        await self._send(message)
