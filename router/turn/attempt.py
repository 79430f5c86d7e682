"""One try of one turn: both legs of a PD pair, or the one leg of a unified worker, and what came of them.

The legs are sinks that the upstream pool calls; nothing here waits. The first leg to fail decides: it cancels the other, and
both engines are told to abort by `rid`, since a half-failed pair leaves decode waiting (SGLang). Every booking is settled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from router.body.strip import details, strip_member
from router.dialects.dialect import Dialect, split_blocks
from router.errors import EngineDied, EngineError, GatewayError
from router.fleet.worker import Worker
from router.turn.engine_reply import fault_of, fault_of_event
from router.turn.observe import StreamObserver
from router.turn.place import Placement
from router.turn.port import ReplyPort
from router.wire.exchange import Exchange
from router.wire.head import Header, end_to_end

_MAX_WHOLE_REPLY_BYTES = 256 * 1024 * 1024
_DROPPED_REPLY_HEADERS = frozenset((b"content-length", b"date", b"server"))


class Failed(msgspec.Struct, frozen=True):
    """The try failed. `committed`: too late for another one, the client was aborted."""

    error: GatewayError
    worker: Worker
    committed: bool


class Served(msgspec.Struct, frozen=True):
    """The whole reply went to the port."""


Result = Failed | Served


class Leg(msgspec.Struct, frozen=True):
    """One request to one engine, ready to be sent."""

    worker: Worker
    head: bytes
    body: Sequence[bytes | memoryview]


class Attempt:
    """Start it with `begin`; `result` resolves once. `cancel` when the client left: `result` then stays unresolved."""

    def __init__(
        self,
        turn_id: int,
        placement: Placement,
        port: ReplyPort,
        dialect: Dialect,
        *,
        strip_usage: bool,
        strip_details: bool,
        reply_headers: list[Header],
        clock: Callable[[], float],
        abort_on: Callable[[Worker], None],
    ) -> None:
        self.placement = placement
        self.result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.dispatched_ms = clock()
        self.first_event_ms: float | None = None
        self.prefilled_ms: float | None = None
        self.observer = StreamObserver(dialect, strip_usage=strip_usage, strip_details=strip_details)
        self.whole_reply: bytes | None = None
        self.status = 0
        self._turn_id = turn_id
        self._port = port
        self._dialect = dialect
        self._strip_details = strip_details
        self._reply_headers = reply_headers
        self._clock = clock
        self._abort_on = abort_on
        self._exchanges: list[Exchange] = []
        self._over = False

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def usage(self) -> bytes | None:
        """The reply's raw usage object, however it came."""
        return self.observer.usage if self.whole_reply is None else self._dialect.usage(self.whole_reply)

    def details(self) -> bytes | None:
        """SGLang's cache details, raw."""
        return self.observer.details if self.whole_reply is None else details(self.whole_reply)

    def finish_reason(self) -> str | None:
        return self.observer.finish_reason if self.whole_reply is None else self._dialect.finish_reason(self.whole_reply)

    def book(self, prompt_tokens: int) -> None:
        """Count the turn on its workers before a byte is sent: the next decision must see it."""
        placement = self.placement
        uncached = max(0, prompt_tokens - placement.decision.chosen.cut_tokens)
        placement.prefill.ranks[placement.prefill_rank].book_prefill(self._turn_id, uncached, self.dispatched_ms)
        placement.decode.ranks[placement.decode_rank].book_decode(self._turn_id, prompt_tokens)
        placement.prefill.breaker.on_dispatch()
        if placement.disaggregated:
            placement.decode.breaker.on_dispatch()

    def begin(self, legs: Sequence[Leg], send: Callable[[Leg, ReplyLeg | PrefillLeg], Exchange]) -> None:
        """Send every leg; for a pair the prefill leg comes first. Sinks are called only after this has returned."""
        for leg in legs:
            replies = leg is legs[-1]
            sink = ReplyLeg(self, leg.worker) if replies else PrefillLeg(self, leg.worker)
            exchange = send(leg, sink)
            sink.exchange = exchange
            self._exchanges.append(exchange)
        self._port.throttle(exchange.pause_reading, exchange.resume_reading)

    def cancel(self) -> None:
        """The client left or the gateway stops: drop both legs and free what they held, at once."""
        if not self._over:
            self._drop_legs()
            self._settle()
            for worker in (self.placement.prefill, self.placement.decode):
                worker.breaker.on_abandoned()

    # what the legs report

    def prefill_done(self) -> None:
        self.prefilled_ms = self._clock()
        self._settle_prefill()

    def first_event(self, headers: list[Header]) -> None:
        self.first_event_ms = self._clock()
        self._settle_prefill()
        self._port.start_stream(end_to_end(headers, _DROPPED_REPLY_HEADERS) + self._reply_headers)

    def stream(self, events: bytes) -> None:
        self._port.write(events)

    def stream_ended(self) -> None:
        self._port.finish_stream()
        self._succeed()

    def reply_complete(self, status: int, headers: list[Header], body: bytes) -> None:
        self.first_event_ms = self._clock()
        self.status = status
        self.whole_reply = body
        shown = strip_member(body, "sglext") if self._strip_details else body
        kept = end_to_end(headers, _DROPPED_REPLY_HEADERS)
        self._port.respond(status, kept + self._reply_headers, shown)
        self._succeed()

    def fail(self, error: GatewayError, worker: Worker) -> None:
        """The first failure of either leg. Later ones find the try over."""
        if self._over:
            return
        self._drop_legs()
        self._settle()
        committed = self._port.committed
        if committed:
            self._port.abort()
        self.result.set_result(Failed(error, worker, committed))

    @property
    def over(self) -> bool:
        return self._over

    def _succeed(self) -> None:
        self._over = True
        self._settle()
        for worker in (self.placement.prefill, self.placement.decode):
            worker.breaker.on_success()
        self.result.set_result(Served())

    def _drop_legs(self) -> None:
        self._over = True
        for exchange in self._exchanges:
            exchange.abort()
        if self.placement.disaggregated:
            self._abort_on(self.placement.prefill)
            self._abort_on(self.placement.decode)

    def _settle(self) -> None:
        self._settle_prefill()
        self.placement.decode.ranks[self.placement.decode_rank].settle_decode(self._turn_id)

    def _settle_prefill(self) -> None:
        self.placement.prefill.ranks[self.placement.prefill_rank].settle_prefill(self._turn_id, self._clock())


class ReplyLeg:
    """The leg whose reply the client gets: decode's, or a unified worker's."""

    __slots__ = ("_attempt", "_bytes", "_headers", "_parts", "_status", "_streaming", "_worker", "exchange")

    def __init__(self, attempt: Attempt, worker: Worker) -> None:
        self.exchange: Exchange | None = None
        self._attempt = attempt
        self._worker = worker
        self._status = 0
        self._headers: list[Header] = []
        self._streaming = False
        self._parts: list[bytes] = []
        self._bytes = 0

    def on_head(self, status: int, headers: list[Header]) -> None:
        self._status = status
        self._headers = headers
        self._streaming = status == 200 and _is_event_stream(headers)

    def on_body(self, data: bytes) -> None:
        if self._streaming:
            self._on_events(data)
        else:
            self._bytes += len(data)
            self._parts.append(data)
            if self._bytes > _MAX_WHOLE_REPLY_BYTES:
                error = EngineDied(f"{self._worker.worker_id}: reply above {_MAX_WHOLE_REPLY_BYTES} bytes")
                self._attempt.fail(error, self._worker)

    def on_end(self) -> None:
        attempt = self._attempt
        if self._streaming:
            if attempt.observer.ended:
                attempt.stream_ended()
            else:
                attempt.fail(EngineDied(f"{self._worker.worker_id} ended its stream without an end marker"), self._worker)
        elif 200 <= self._status < 300:
            attempt.reply_complete(self._status, self._headers, b"".join(self._parts))
        else:
            attempt.fail(fault_of(self._status, self._headers, b"".join(self._parts), self._worker.worker_id), self._worker)

    def on_error(self, error: EngineError) -> None:
        self._attempt.fail(error, self._worker)

    def _on_events(self, data: bytes) -> None:
        attempt, observer = self._attempt, self._attempt.observer
        started = observer.started
        try:
            events = observer.feed(data)
        except EngineDied as error:  # an event above the bound
            attempt.fail(error, self._worker)
            return
        if observer.error_event is not None:
            attempt.fail(fault_of_event(observer.error_event, self._worker.worker_id, attempt.dialect), self._worker)
        elif events:
            if not started:
                attempt.first_event(self._headers)
            attempt.stream(events)


class PrefillLeg:
    """The prefill leg of a pair: consumed, but a failure of it is the failure of the try."""

    __slots__ = ("_attempt", "_error_parts", "_headers", "_status", "_tail", "_worker", "exchange")

    def __init__(self, attempt: Attempt, worker: Worker) -> None:
        self.exchange: Exchange | None = None
        self._attempt = attempt
        self._worker = worker
        self._status = 0
        self._headers: list[Header] = []
        self._error_parts: list[bytes] = []
        self._tail = b""

    def on_head(self, status: int, headers: list[Header]) -> None:
        self._status = status
        self._headers = headers

    def on_body(self, data: bytes) -> None:
        attempt = self._attempt
        if self._status != 200:
            self._error_parts.append(data)
        elif _is_event_stream(self._headers) and attempt.dialect.may_hold_error(data):
            error = next((event for event in split_blocks(data) if attempt.dialect.is_error(event)), None)
            if error is not None:
                attempt.fail(fault_of_event(error, self._worker.worker_id, attempt.dialect), self._worker)

    def on_end(self) -> None:
        if self._status == 200:
            self._attempt.prefill_done()
        else:
            body = b"".join(self._error_parts)
            self._attempt.fail(fault_of(self._status, self._headers, body, self._worker.worker_id), self._worker)

    def on_error(self, error: EngineError) -> None:
        self._attempt.fail(error, self._worker)


def _is_event_stream(headers: list[Header]) -> bool:
    return any(name == b"content-type" and b"event-stream" in value for name, value in headers)
