"""Everything that can go wrong with a request, as one tree.

GatewayError
├── BadRequest                  400  the client's fault; never retried
│   ├── UnknownModel            404
│   ├── UnknownThread           404  no such thread was ever seen here, or it was forgotten
│   ├── UnknownPrefetch         404  no such handle was ever given, or it was forgotten
│   ├── UnknownPin              404  no such pin was ever made, or it has ended
│   ├── UnknownNode             404  no node of that name is followed
│   ├── Malformed               422  the body or query of an admin call has the wrong shape
│   ├── BodyTooLarge            413
│   ├── EncodedBody             415  the body is compressed
│   ├── HeadTooLarge            431
│   ├── Unauthorized            401
│   ├── NotServed               404  no engine of this pool answers that path
│   ├── ThreadWithoutPages      409  a thread's prompt names no page
│   ├── NothingPinned           409  no node has, or may pin, any of a prompt's pages
│   ├── PrefetchDisabled        409  the configuration allows no explicit prefetch
│   └── ClientFault             4xx  the engine refused the request itself
├── NoCapacity                  503  nothing can take the turn now; carries Retry-After
│   ├── QueueFull               429  the bounded queue is full
│   ├── PinsFull                429  as many pins are held as may be
│   ├── QueueTimeout            503  waited its whole deadline in the queue
│   ├── Shed                    503  the first token would be late on every worker, and its class is shed then
│   └── NoWorker                503  no healthy worker of a needed role
└── EngineError                 502  an engine failed this try; another worker may be tried
    ├── ConnectFailed                no connection
    │   └── StaleConnection          a pooled connection had died before any reply byte: same worker, fresh connection
    ├── EngineTimeout           504  no reply byte within the deadline
    ├── EngineDied                   connection lost or bytes that are not HTTP, after the request was sent
    ├── EngineStatus                 a 5xx other than 503, or an error event inside a 200 stream
    └── EngineBusy              503  429 or 503 from the engine: back-pressure, not a fault of the worker

Each knows its HTTP status, OpenAI `type` and `code`, and, where a client should wait, `retry_after_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.config.fault_words import fault_words

_MAX_FAULTS = 20


class GatewayError(Exception):
    status = 500
    type = "server_error"
    code: str | None = None
    retry_after_s: float | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class UnknownModel(BadRequest):
    status = 404
    code = "model_not_found"


class UnknownThread(BadRequest):
    status = 404
    code = "thread_not_found"


class ThreadWithoutPages(BadRequest):
    status = 409
    code = "thread_without_pages"


class UnknownPrefetch(BadRequest):
    status = 404
    code = "prefetch_not_found"


class UnknownPin(BadRequest):
    status = 404
    code = "pin_not_found"


class UnknownNode(BadRequest):
    status = 404
    code = "node_not_found"


class NothingPinned(BadRequest):
    status = 409
    code = "nothing_pinned"


class Malformed(BadRequest):
    status = 422
    code = "malformed"

    @classmethod
    def of(cls, faults: Sequence[Mapping[str, Any]]) -> Malformed:
        """`faults` as pydantic tells them. Names each member that is wrong, up to a bound."""
        told = []
        for fault in faults[:_MAX_FAULTS]:
            within = () if fault["type"] == "json_invalid" else fault["loc"][1:]  # which is where in the text it stops
            path = ".".join(str(part) for part in within) or str(fault["loc"][0])
            told.append(f"{path}: {_member_fault(fault)}")
        more = len(faults) - len(told)
        return cls("; ".join(told) + (f"; and {more} more" if more else ""), param=told[0].partition(": ")[0] if told else None)


class BodyTooLarge(BadRequest):
    status = 413
    code = "body_too_large"

    @classmethod
    def beyond(cls, max_body_bytes: int) -> BodyTooLarge:
        """For the limit that the configuration sets."""
        return cls(f"the body exceeds {max_body_bytes} bytes (`listen.max_body_bytes`)")


class EncodedBody(BadRequest):
    status = 415
    code = "content_encoding_not_supported"


class HeadTooLarge(BadRequest):
    status = 431
    code = "head_too_large"


class Unauthorized(BadRequest):
    status = 401
    code = "invalid_api_key"


class NotServed(BadRequest):
    status = 404
    code = "path_not_served"


class PrefetchDisabled(BadRequest):
    status = 409
    code = "prefetch_disabled"


class ClientFault(BadRequest):
    """The engine refused the request itself: the client gets this status, from whichever leg it came."""

    def __init__(self, message: str, *, status: int, code: str | None, param: str | None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


class NoCapacity(GatewayError):
    status = 503
    type = "overloaded_error"
    code = "no_capacity"
    retry_after_s = 2.0


class QueueFull(NoCapacity):
    status = 429
    code = "queue_full"


class PinsFull(NoCapacity):
    status = 429
    code = "pins_full"


class QueueTimeout(NoCapacity):
    code = "queue_timeout"


class Shed(NoCapacity):
    code = "deadline_out_of_reach"


class NoWorker(NoCapacity):
    code = "no_worker"
    retry_after_s = 5.0


class EngineError(GatewayError):
    status = 502
    type = "server_error"
    code = "engine_error"


class ConnectFailed(EngineError):
    code = "engine_unreachable"


class StaleConnection(ConnectFailed):
    pass


class EngineTimeout(EngineError):
    status = 504
    code = "engine_timeout"


class EngineDied(EngineError):
    code = "engine_died"


class EngineStatus(EngineError):
    def __init__(self, message: str, *, engine_status: int) -> None:
        super().__init__(message)
        self.engine_status = engine_status


class EngineBusy(EngineError):
    status = 503
    type = "overloaded_error"
    code = "engine_busy"
    retry_after_s = 2.0


def _member_fault(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown member"
    if fault["type"] == "json_invalid":
        return f"no JSON: {fault['ctx']['error']} at character {fault['loc'][-1]}"
    if isinstance(fault["input"], bytes):  # a body that was not read as JSON
        return "send JSON, with the header `content-type: application/json`"
    return fault_words(fault)
