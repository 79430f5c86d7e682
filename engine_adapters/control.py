"""Control calls to an engine over the httpx client that the caller lends.

Turns every failure (no connection, a deadline, an error status, a body that is not what it should be) into `AdapterError` with
the URL in its text. It refuses to know what any reply means.
"""

from __future__ import annotations

from typing import TypeVar

import httpx
import msgspec

from engine_adapters.base import AdapterError, Endpoint

T = TypeVar("T")

CONTROL_TIMEOUT_S = 5.0


class ControlStatus(AdapterError):
    """The engine answered a control call with an error status."""

    def __init__(self, url: str, status: int, body: str) -> None:
        super().__init__(f"{url} answered {status}: {body[:200]}")
        self.status = status

    @property
    def absent(self) -> bool:
        """The engine does not know this path: an older or another engine, not a fault."""
        return self.status in (404, 405, 501)


async def call(
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    path: str,
    *,
    method: str = "GET",
    body: object | None = None,
    admin: bool = False,
    timeout_s: float = CONTROL_TIMEOUT_S,
) -> httpx.Response:
    """One request to `endpoint.url + path`. Raises `ControlStatus` for any 4xx or 5xx, `AdapterError` for the rest."""
    url = endpoint.url + path
    content = None if body is None else msgspec.json.encode(body)
    headers = _headers(endpoint, admin=admin, has_body=content is not None)
    try:
        reply = await http.request(method, url, content=content, headers=headers, timeout=timeout_s)
    except httpx.HTTPError as error:
        raise AdapterError(f"{method} {url} failed: {type(error).__name__} {error}".rstrip()) from error
    if reply.status_code >= 400:
        raise ControlStatus(url, reply.status_code, reply.text)
    return reply


async def read(http: httpx.AsyncClient, endpoint: Endpoint, path: str, shape: type[T], *, admin: bool = False) -> T:
    """GET `path` and decode its JSON into `shape`."""
    reply = await call(http, endpoint, path, admin=admin)
    return decode(reply.content, shape, endpoint.url + path)


def decode(raw: bytes, shape: type[T], origin: str) -> T:
    """JSON bytes to `shape`; `origin` names them in the error."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterError(f"{origin} is not the JSON that was expected: {error}") from error


def _headers(endpoint: Endpoint, *, admin: bool, has_body: bool) -> dict[str, str]:
    headers = {"content-type": "application/json"} if has_body else {}
    key = (endpoint.admin_key or endpoint.api_key) if admin else endpoint.api_key
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers
