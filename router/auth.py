"""Who may come in. Keys are compared in constant time; the gateway's own keys are never forwarded (`turn.request_legs`)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from router.errors import Unauthorized
from router.wire.head import Header


def check_client(headers: Iterable[Header], keys: tuple[str, ...]) -> None:
    """Raise Unauthorized unless one of `keys` came as `Authorization: Bearer` or `x-api-key`. No keys: everybody may."""
    if not keys:
        return
    sent = sent_key(headers)
    if not sent:
        raise Unauthorized("this gateway needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`")
    if not any(hmac.compare_digest(sent, key.encode()) for key in keys):
        raise Unauthorized("unknown API key")


def sent_key(headers: Iterable[Header]) -> bytes | None:
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            return value.strip()
    return None
