"""Which requests take the hot path and who handles them: the settings that all connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

import structlog

from router.errors import GatewayError
from router.wire.deadlines import Deadlines
from router.wire.request import ErrorRenderer, HotHandler, HotRequest, render_openai_error

_log = structlog.get_logger()


class HotRoutes:
    """POST on one of `paths` is collected and given to `handler`; everything else goes the ordinary ASGI way.

    `idle_s` closes a client's connection on which nothing is being served and nothing came for that long. `before_break` is
    called when the drain is over: replies that lose their client from then on were broken by the server.
    """

    def __init__(
        self,
        handler: HotHandler,
        paths: Collection[str],
        *,
        max_body_bytes: int = 256 * 1024 * 1024,
        idle_s: float = 75.0,
        render_error: ErrorRenderer = render_openai_error,
        before_break: Callable[[], None] | None = None,
    ) -> None:
        self.handler = handler
        self.paths = {path.encode(): path for path in paths}
        self.max_body_bytes = max_body_bytes
        self.idle_s = idle_s
        self.render_error = render_error
        self.before_break = before_break
        self.failures = 0  # handlers that raised
        self._deadlines: Deadlines | None = None

    def deadlines(self, loop: asyncio.AbstractEventLoop) -> Deadlines:
        """The wheel that the connections of this server share."""
        if self._deadlines is None:
            self._deadlines = Deadlines(loop)
        return self._deadlines

    def dispatch(self, request: HotRequest) -> Coroutine[Any, Any, None] | None:
        """Call the handler. What it returned to be awaited is for the caller to run as a task of its own."""
        try:
            waiting = self.handler(request)
        except Exception:  # noqa: BLE001  the root of everything a request does
            self._failed(request)
            return None
        return None if waiting is None else self._finish(request, waiting)

    async def _finish(self, request: HotRequest, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Exception:  # noqa: BLE001  the root of the request's task
            self._failed(request)

    def _failed(self, request: HotRequest) -> None:
        self.failures += 1
        _log.exception("request_failed", path=request.path)
        if request.downstream.started:
            request.downstream.abort()
        else:
            self.refuse(request, GatewayError("internal error"))

    def refuse(self, request: HotRequest, error: GatewayError) -> None:
        """Answer with an error of the server's own, in the dialect of the path."""
        headers, body = self.render_error(request.path, error)
        request.downstream.respond(error.status, headers, body)
