"""The engine's side of one try: sinks that the upstream pool calls with one leg's reply, and that say what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from router.dialects.dialect import Dialect, split_blocks
from router.errors import ConnectFailed, EngineDied, EngineError, EngineTimeout, GatewayError, StaleConnection
from router.fleet.worker import Worker
from router.turn.engine_reply import fault_of, fault_of_event
from router.turn.observe import StreamObserver
from router.wire.exchange import Exchange
from router.wire.head import Header
from router.wire.sse import EventSplitter

_log = structlog.get_logger(__name__)
_MAX_WHOLE_REPLY_BYTES = 256 * 1024 * 1024


_TOLD: dict[type[EngineError], str] = {
    ConnectFailed: "no connection to the engine",
    StaleConnection: "the engine closed the connection",
}


class Leg(msgspec.Struct, frozen=True):
    """One request to one engine, ready to be sent."""

    worker: Worker
    head: bytes
    body: Sequence[bytes | memoryview]


class LegReports(Protocol):
    """What the legs of a try tell it. After `fail` or the end of the reply leg they tell nothing more."""

    dialect: Dialect
    observer: StreamObserver | None  # where a stream was asked for
    stream: Callable[[bytes], None]  # takes the events that may go to the client

    def prefill_done(self, reply: bytes) -> None: ...

    def first_event(self, headers: list[Header]) -> None: ...

    def stream_ended(self) -> None: ...

    def reply_complete(self, status: int, headers: list[Header], body: bytes) -> None: ...

    def fail(self, error: GatewayError, worker: Worker) -> None: ...

    def overdue(self) -> bool:
        """Whether the deadline for the first real event has passed: comments before it do not count."""
        ...


class _EngineLeg:
    """What both legs have: where the reply came from and how it began. `exchange` is set once the request was sent."""

    __slots__ = ("_headers", "_parts", "_reports", "_status", "_streaming", "_worker", "exchange")

    def __init__(self, reports: LegReports, worker: Worker) -> None:
        self.exchange: Exchange | None = None
        self._reports = reports
        self._worker = worker
        self._status = 0
        self._headers: list[Header] = []
        self._streaming = False
        self._parts: list[bytes] = []  # of a whole reply, or of an error

    def on_head(self, status: int, headers: list[Header]) -> None:
        self._status = status
        self._headers = headers
        self._streaming = status == 200 and self._reports.observer is not None and is_event_stream(headers)

    def on_error(self, error: EngineError) -> None:
        """Clients get to know the worker by its name, not by its address."""
        self._worker.last_fault = error.message
        error.message = f"{self._worker.worker_id}: {_TOLD.get(type(error), error.message)}"
        self._fail(error)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Whatever goes wrong in reading a reply is the reply's failure: nobody else would settle the try."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  the root of what a finished reply sets off
            _log.exception("reply_unreadable", worker=self._worker.worker_id)
            self._fail(EngineDied(f"{self._worker.worker_id}: the reply could not be read ({type(error).__name__})"))

    def _fail(self, error: GatewayError) -> None:
        self._reports.fail(error, self._worker)

    def _fail_by_status(self, body: bytes) -> None:
        self._fail(fault_of(self._status, self._headers, body, self._worker.worker_id))

    def _fail_by_event(self, event: bytes) -> None:
        self._fail(fault_of_event(event, self._worker.worker_id, self._reports.dialect))


class ReplyLeg(_EngineLeg):
    """The leg whose reply the client gets: decode's, or a unified worker's."""

    __slots__ = ("_bytes", "_observer", "_stream")

    def __init__(self, reports: LegReports, worker: Worker) -> None:
        super().__init__(reports, worker)
        self._bytes = 0
        self._observer = reports.observer
        self._stream = reports.stream

    def on_head(self, status: int, headers: list[Header]) -> None:
        super().on_head(status, headers)
        if not self._streaming:
            self._observer = None

    def on_body(self, data: bytes) -> None:
        observer = self._observer
        if observer is None:
            self._on_piece(data)
            return
        started = observer.started
        try:
            events = observer.feed(data)
        except EngineDied as error:  # an event above the bound
            self._fail(error)
            return
        if not observer.started and self._reports.overdue():
            self._fail(EngineTimeout(f"{self._worker.worker_id}: no event of output within its deadline, only comments"))
        elif observer.error_event is not None:
            self._fail_by_event(observer.error_event)
        elif events:
            if not started:
                self._reports.first_event(self._headers)
            self._stream(events)

    def on_end(self) -> None:
        self._guarded(self._on_end)

    def _on_end(self) -> None:
        if self._observer is None:
            self._on_whole(b"".join(self._parts))
        elif self._observer.ended:
            self._reports.stream_ended()
        else:
            self._fail(EngineDied(f"{self._worker.worker_id} ended its stream without an end marker"))

    def _on_piece(self, data: bytes) -> None:
        self._bytes += len(data)
        self._parts.append(data)
        if self._bytes > _MAX_WHOLE_REPLY_BYTES:
            self._fail(EngineDied(f"{self._worker.worker_id}: reply above {_MAX_WHOLE_REPLY_BYTES} bytes"))

    def _on_whole(self, body: bytes) -> None:
        if 200 <= self._status < 300:
            self._reports.reply_complete(self._status, self._headers, body)
        else:
            self._fail_by_status(body)


class PrefillLeg(_EngineLeg):
    """The prefill leg of a pair: consumed, but a failure of it is the failure of the try."""

    __slots__ = ("_splitter",)

    def __init__(self, reports: LegReports, worker: Worker) -> None:
        super().__init__(reports, worker)
        self._splitter = EventSplitter()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)  # one token long; its usage alone tells what prefill had in cache
        if self._streaming:
            self._look_for_error(data)

    def on_end(self) -> None:
        self._guarded(self._on_end)

    def _on_end(self) -> None:
        body = b"".join(self._parts)
        if self._status == 200:
            self._reports.prefill_done(body)
        else:
            self._fail_by_status(body)

    def _look_for_error(self, data: bytes) -> None:
        dialect = self._reports.dialect
        events = self._splitter.feed(data)
        if not dialect.may_hold_error(events):
            return
        error = next((event for event in split_blocks(events) if dialect.is_error(event)), None)
        if error is not None:
            self._fail_by_event(error)


def is_event_stream(headers: list[Header]) -> bool:
    return b"event-stream" in dict(headers).get(b"content-type", b"")
