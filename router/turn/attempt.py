"""One try of one turn: both legs of a PD pair, or the one leg of a unified worker, and what came of them.

The legs are sinks that the upstream pool calls; nothing here waits. The first leg to fail decides: it cancels the other, and
both engines are told to abort by `rid`, since a half-failed pair leaves decode waiting (SGLang). Every booking is settled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from router.body.logprobs import PromptLogprobs
from router.body.strip import details, strip_member
from router.dialects.dialect import Dialect
from router.errors import GatewayError
from router.fleet.worker import Worker
from router.turn.legs import Leg, PrefillLeg, ReplyLeg
from router.turn.observe import StreamObserver
from router.turn.place import Placement
from router.turn.port import ReplyPort
from router.wire.exchange import Exchange
from router.wire.head import Header, end_to_end

_DROPPED_REPLY_HEADERS = frozenset((b"content-length", b"date", b"server"))


class Failed(msgspec.Struct, frozen=True):
    """The try failed. `committed`: too late for another one, the client was aborted."""

    error: GatewayError
    worker: Worker
    committed: bool


class Served(msgspec.Struct, frozen=True):
    """The whole reply went to the port."""


Result = Failed | Served


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
        merge_logprobs: bool,
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
        self.dialect = dialect
        self.wants_prefill_reply = merge_logprobs
        self._strip_details = strip_details
        self._reply_headers = reply_headers
        self._clock = clock
        self._abort_on = abort_on
        self._exchanges: list[Exchange] = []
        self._over = False
        self._prompt_logprobs: PromptLogprobs | None = None
        self._held: list[Callable[[], None]] = []  # what waits for the prefill leg's reply, in order

    def usage(self) -> bytes | None:
        """The reply's raw usage object, however it came."""
        return self.observer.usage if self.whole_reply is None else self.dialect.usage(self.whole_reply)

    def details(self) -> bytes | None:
        """SGLang's cache details, raw."""
        return self.observer.details if self.whole_reply is None else details(self.whole_reply)

    def finish_reason(self) -> str | None:
        return self.observer.finish_reason if self.whole_reply is None else self.dialect.finish_reason(self.whole_reply)

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

    def prefill_done(self, reply: bytes) -> None:
        self.prefilled_ms = self._clock()
        self._settle_prefill()
        if self.wants_prefill_reply:
            self._prompt_logprobs = PromptLogprobs(reply)
            held, self._held = self._held, []
            for call in held:
                call()

    def first_event(self, headers: list[Header]) -> None:
        self.first_event_ms = self._clock()
        self._settle_prefill()
        self._port.start_stream(end_to_end(headers, _DROPPED_REPLY_HEADERS) + self._reply_headers)

    def stream(self, events: bytes) -> None:
        if not self.wants_prefill_reply:
            self._port.write(events)
        elif self._prompt_logprobs is not None:
            self._port.write(self._prompt_logprobs.complete_events(events))
        else:
            self._held.append(lambda: self.stream(events))

    def stream_ended(self) -> None:
        if self._waits_for_prefill:
            self._held.append(self.stream_ended)
            return
        self._port.finish_stream()
        self._succeed()

    def reply_complete(self, status: int, headers: list[Header], body: bytes) -> None:
        if self._waits_for_prefill:
            self._held.append(lambda: self.reply_complete(status, headers, body))
            return
        self.first_event_ms = self._clock()
        self.status = status
        self.whole_reply = body
        shown = strip_member(body, "sglext") if self._strip_details else body
        if self._prompt_logprobs is not None:
            shown = self._prompt_logprobs.complete(shown)
        self._port.respond(status, end_to_end(headers, _DROPPED_REPLY_HEADERS) + self._reply_headers, shown)
        self._succeed()

    @property
    def _waits_for_prefill(self) -> bool:
        return self.wants_prefill_reply and self._prompt_logprobs is None

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
