"""The twin on a bare ASGI server made of two functions: what it sends, and what it does when either of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from wire_rig import CHAT, DEADLINE_S, ordinary

from router.wire.asgi import HotAsgi
from router.wire.asgi_downstream import ReplyAborted
from router.wire.request import HotRequest
from router.wire.routes import HotRoutes

SCOPE = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"a=1", "headers": [(b"x", b"y")], "client": None}


class BareServer:
    """One request; `sent` is what the application sent. `gone`: the client has left, and sending says so as OSError."""

    def __init__(self, *body: bytes) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.gone = asyncio.Event()
        self._body = list(body)

    async def receive(self) -> MutableMapping[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.gone.is_set():
            raise OSError("client disconnected")
        self.sent.append(message)


async def test_request_and_reply() -> None:
    seen: list[HotRequest] = []

    def handler(request: HotRequest) -> None:
        seen.append(request)
        request.downstream.respond(200, [(b"x", b"1")], b"ok")

    server = BareServer(b"he", b"llo")
    await HotAsgi(ordinary, HotRoutes(handler, [CHAT]))(dict(SCOPE), server.receive, server.send)
    assert (seen[0].body, seen[0].query, seen[0].client) == (b"hello", b"a=1", None)
    assert server.sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"x", b"1"), (b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"ok", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False},
    ]


async def test_a_send_that_fails_is_a_disconnect() -> None:
    server = BareServer(b"{}")
    left: list[str] = []

    def handler(request: HotRequest) -> None:
        request.downstream.on_disconnect = lambda: left.append("left")
        server.gone.set()
        request.downstream.start(200, [])
        request.downstream.write(b"data")

    app = HotAsgi(ordinary, HotRoutes(handler, [CHAT]))
    await asyncio.wait_for(app(dict(SCOPE), server.receive, server.send), DEADLINE_S)
    assert left == ["left"]


async def test_an_abort_reaches_the_server_as_an_exception() -> None:
    server = BareServer(b"{}")

    def handler(request: HotRequest) -> None:
        request.downstream.start(200, [])
        request.downstream.abort()

    with pytest.raises(ReplyAborted):
        await HotAsgi(ordinary, HotRoutes(handler, [CHAT]))(dict(SCOPE), server.receive, server.send)
    assert [message["type"] for message in server.sent] == ["http.response.start"]


async def test_other_scopes_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await HotAsgi(app, HotRoutes(lambda request: None, [CHAT]))({"type": "lifespan"}, BareServer().receive, BareServer().send)
    assert seen == ["lifespan"]
