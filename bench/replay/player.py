"""Sends recorded requests through a gateway, one after another, and notes what came back. A client like any other."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

_HOP = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding", "authorization", "x-api-key"})


@dataclass(frozen=True, slots=True)
class Played:
    """One request's outcome. `complete`: a whole reply came, a stream with its end marker."""

    path: str
    status: int
    complete: bool
    worker: str
    thread: str
    request_id: str
    elapsed_ms: float
    error: str = ""


class Player:
    """`model` and `max_tokens` replace the recording's. Anthropic `thinking` is left out, since engines refuse it for a model
    without a reasoning parser. Nothing else of a body is touched here.
    """

    def __init__(self, client: httpx.Client, model: str, max_tokens: int = 8) -> None:
        self._client = client
        self._model = model
        self._max_tokens = max_tokens

    def play(self, path: str, body: dict[str, Any], headers: Mapping[str, str] | tuple[tuple[str, str], ...] = ()) -> Played:
        """Send one request and read its whole reply."""
        sent = {"content-type": "application/json"}
        sent |= {name.lower(): value for name, value in dict(headers).items() if name.lower() not in _HOP}
        started = time.perf_counter()
        with self._client.stream("POST", path, headers=sent, content=json.dumps(self._fitted(path, body))) as reply:
            data, broken = _read(reply)
        elapsed_ms = (time.perf_counter() - started) * 1000
        complete = not broken and (not _is_stream(reply) or _has_end(data))
        shown = reply.headers
        return Played(
            path.split("?")[0],
            reply.status_code,
            complete and reply.status_code == 200,
            shown.get("x-loadback-worker", ""),
            shown.get("x-loadback-thread", ""),
            shown.get("x-loadback-request-id", ""),
            elapsed_ms,
            "" if reply.status_code == 200 else data.decode("utf-8", "replace")[:500],
        )

    def _fitted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        left_out = ("max_completion_tokens", "thinking") if path.startswith("/v1/messages") else ("max_completion_tokens",)
        fitted = {key: value for key, value in body.items() if key not in left_out}
        limit = "max_output_tokens" if path.split("?")[0] == "/v1/responses" else "max_tokens"
        return fitted | {"model": self._model, limit: self._max_tokens}


def _read(reply: httpx.Response) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    try:
        parts.extend(reply.iter_bytes())
    except httpx.RemoteProtocolError:
        return b"".join(parts), True
    return b"".join(parts), False


def _is_stream(reply: httpx.Response) -> bool:
    return "event-stream" in reply.headers.get("content-type", "")


def _has_end(data: bytes) -> bool:
    return any(mark in data for mark in (b"data: [DONE]", b"response.completed", b"response.incomplete", b"message_stop"))
