"""SGLang's errors in each of its dialects (wire: entrypoints/http_server.py, openai/serving_base.py, anthropic/serving.py)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from engine_adapters.emulator.worker.driver import Failure


class BadRequest(ValueError):
    """The request cannot be served as it is. `kind` is the error's `type` where the dialect has one of its own."""

    def __init__(self, message: str, kind: str = "BadRequestError", status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status
        self.param = param


def openai_error(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """The flat shape that SGLang's chat and completions use."""
    return {"object": "error", "message": message, "type": kind, "param": param, "code": status}


def openai_refusal(error: BadRequest | Failure) -> dict[str, Any]:
    """The error body of a chat or completion reply without a 200."""
    if isinstance(error, BadRequest):
        return openai_error(error.status, error.message, error.kind, error.param)
    return openai_error(error.status, error.message, "BadRequestError" if error.status == 400 else str(error.status))


def openai_stream_error(status: int, message: str) -> bytes:
    """An error inside a stream that already has its 200."""
    name = HTTPStatus(status).name
    return b"data: " + msgspec.json.encode({"error": openai_error(status, message, name)}) + b"\n\n"


def invalid(kind: str, where: tuple[str | int, ...], message: str, value: Any = None) -> BadRequest:
    """What FastAPI and pydantic say of a body that does not fit, without the file names they add."""
    shown: dict[str, Any] = {"type": kind, "loc": where, "msg": message, "input": value}
    return BadRequest(f"1 validation error:\n  {shown!r}", "Bad Request")


def unsupported_media_type() -> BadRequest:
    return invalid("value_error", ("header", "content-type"), "Unsupported Media Type: Only 'application/json' is allowed")


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as an object; of duplicate keys the last wins. Raises BadRequest."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise invalid("json_invalid", ("body", 1), "JSON decode error", str(error)) from error
    if not isinstance(value, dict):
        raise invalid("model_attributes_type", ("body",), "Input should be a valid dictionary or object to extract fields from")
    return value
