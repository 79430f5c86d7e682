"""The hot path as a plain ASGI application: same requests, same handler, any server. The slow, obvious twin of `server.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router.errors import BodyTooLarge
from router.wire.asgi_downstream import AsgiDownstream, Receive, ReplyAborted, Send
from router.wire.request import HotRequest
from router.wire.routes import HotRoutes

Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class HotAsgi:
    """Takes hot requests from in front of `app`."""

    def __init__(self, app: AsgiApp, routes: HotRoutes) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].encode() not in self._routes.paths:
            await self._app(scope, receive, send)
            return
        downstream = AsgiDownstream(scope["method"])
        client = scope.get("client")
        request = HotRequest(
            method=scope["method"],
            path=scope["path"],
            query=scope.get("query_string", b""),
            headers=[(name, value) for name, value in scope["headers"]],
            body=b"",
            client=(client[0], client[1]) if client else None,
            downstream=downstream,
        )
        body = await self._collect(receive)
        if body is None:
            return
        request.body = body
        await self._serve(request, downstream, receive, send)
        if downstream.aborted:
            raise ReplyAborted

    async def _collect(self, receive: Receive) -> bytes | None:
        """The whole body, or as much as shows that it is too long; None when the client has left."""
        parts: list[bytes] = []
        size = 0
        while size <= self._routes.max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            parts.append(part)
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    async def _serve(self, request: HotRequest, downstream: AsgiDownstream, receive: Receive, send: Send) -> None:
        if len(request.body) > self._routes.max_body_bytes:
            self._routes.refuse(request, BodyTooLarge.beyond(self._routes.max_body_bytes))
            await downstream.pump(send)
            return
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(downstream.watch(receive))
            handling = self._routes.dispatch(request)
            if handling is not None:
                tasks.create_task(handling)
            try:
                await downstream.pump(send)
            except ReplyAborted:
                pass  # raised again by the caller, outside of the group
            finally:
                watch.cancel()
