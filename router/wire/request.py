"""A request on a hot path, complete and not yet looked at, and what handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from router.errors import GatewayError
from router.wire.downstream import Downstream
from router.wire.head import Header


class HotRequest(msgspec.Struct):
    """`path` is one of the hot paths; `query` is raw; header names are in lower case, in order.

    `body` is as the client sent it: without transfer coding, with its content coding untouched.
    """

    method: str
    path: str
    query: bytes
    headers: list[Header]
    body: bytes
    client: tuple[str, int] | None
    downstream: Downstream


# Called on the loop when the body is complete. It may answer at once, later from callbacks, or return an awaitable, which the
# server runs as one task that it owns. What it raises is logged, counted and answered with 500 (after `start`: an abort).
HotHandler = Callable[[HotRequest], Awaitable[None] | None]

# How the server answers for itself (413, 500, ...) on a path, in that path's dialect: fields and body.
ErrorRenderer = Callable[[str, GatewayError], tuple[list[Header], bytes]]


def render_openai_error(path: str, error: GatewayError) -> tuple[list[Header], bytes]:
    """The OpenAI shape, for servers that are given no other renderer."""
    body = msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )
    return [(b"content-type", b"application/json")], body
