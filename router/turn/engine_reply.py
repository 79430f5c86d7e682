"""What an engine's whole (not streamed) reply means: served, the client's fault, back-pressure, or the engine's fault.

Engines speak several error shapes; clients understand only their own dialect's: the message is moved over, the status kept.
"""

from __future__ import annotations

import msgspec

from router.dialects.dialect import Dialect
from router.errors import ClientFault, EngineBusy, EngineStatus, GatewayError
from router.wire.head import Header

_RETRY_AFTER_MAX_S = 60.0


class _Error(msgspec.Struct):
    message: str | None = None
    param: str | None = None
    code: str | int | None = None


class _ErrorReply(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    param: str | None = None
    code: str | int | None = None
    detail: object = None


_decoder = msgspec.json.Decoder(_ErrorReply)


def fault_of(status: int, headers: list[Header], body: bytes, worker_id: str) -> GatewayError:
    """The error behind a reply whose status is not 2xx."""
    said = _read(body)
    message = said.message or f"the engine answered {status}"
    if status in (429, 503):
        return EngineBusy(f"{worker_id}: {message}", retry_after_s=_retry_after_s(headers))
    if status >= 500:
        return EngineStatus(f"{worker_id}: {message}", engine_status=status)
    code = said.code if isinstance(said.code, str) else None
    return ClientFault(message, status=status, code=code, param=said.param)


def fault_of_event(event: bytes, worker_id: str, dialect: Dialect) -> GatewayError:
    """The error behind an error event inside a 200 stream. Codes below 500 are the client's fault, as in a plain reply."""
    said = _read(dialect.event_data(event))
    message = said.message or "the engine reported an error in its stream"
    code = said.code if isinstance(said.code, int) else 500
    return fault_of(code if 400 <= code < 600 else 500, [], msgspec.json.encode({"message": message}), worker_id)


def _read(body: bytes) -> _Error:
    try:
        reply = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return _Error(body[:500].decode("utf-8", "replace") or None)
    if isinstance(reply.error, _Error):
        return reply.error
    return _Error(reply.error or reply.message or _detail(reply.detail), reply.param, reply.code)


def _detail(detail: object) -> str | None:
    """FastAPI's `detail`: a sentence, or a list of what was invalid."""
    if detail is None or isinstance(detail, str):
        return detail
    return msgspec.json.encode(detail).decode()[:500]


def _retry_after_s(headers: list[Header]) -> float | None:
    for name, value in headers:
        if name == b"retry-after" and value.strip().isdigit():
            return min(float(value), _RETRY_AFTER_MAX_S)
    return None
