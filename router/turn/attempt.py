"""One try of one turn: both legs of a PD pair, or the one leg of a unified worker, and what came of them.

The legs are sinks that the upstream pool calls; nothing here waits. The first leg to fail decides: it cancels the other, and
both engines are told to abort by `rid`, since a half-failed pair leaves decode waiting (SGLang). Every booking is settled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import msgspec

from router.body.logprobs import PromptLogprobs
from router.body.strip import details, strip_member
from router.dialects.dialect import Dialect
from router.errors import GatewayError
from router.fleet.ledger import Work, doubted_at
from router.fleet.worker import Worker
from router.turn.legs import Leg, PrefillLeg, ReplyLeg
from router.turn.locate import Assumed
from router.turn.observe import StreamObserver
from router.turn.place import Placement
from router.turn.port import ReplyPort
from router.turn.suspects import Suspects
from router.wire.exchange import Exchange
from router.wire.head import Header, end_to_end

_SILENT_MS = 10_000.0  # a worker that has sent nothing for this long and for several times what was predicted is suspect
_SILENT_TIMES = 5.0
_DROPPED_REPLY_HEADERS = frozenset((b"content-length", b"date", b"server"))


class Failed(msgspec.Struct, frozen=True):
    """The try failed. `committed`: too late for another one, the client was aborted."""

    error: GatewayError
    worker: Worker
    committed: bool


OnResult = Callable[[Failed | None], None]


class Attempt:
    """Start it with `begin`. `on_prefilled` is called once, when its prefill is over or given up. `on_result` is called once,
    with nothing when the whole reply went to the port; never after `cancel`. `observer` reads the reply where a stream was
    asked for."""

    def __init__(
        self,
        turn_id: int,
        placement: Placement,
        port: ReplyPort,
        dialect: Dialect,
        observer: StreamObserver | None,
        *,
        strip_details: bool,
        merge_logprobs: bool,
        reply_headers: list[Header],
        first_event_within_ms: float,
        clock: Callable[[], float],
        on_result: OnResult,
        on_prefilled: Callable[[], None],
        abort_on: Callable[[Worker], None],
    ) -> None:
        self.placement = placement
        self.dialect = dialect
        self.observer = observer
        self.wants_prefill_reply = merge_logprobs
        self.dispatched_ms = clock()
        self.first_event_ms: float | None = None
        self.first_batch_ms = 0.0  # of its decode worker, at the first event
        self.prefilled_ms: float | None = None  # of a pair, when the prefill leg's reply was there
        self.whole_reply: bytes | None = None
        self.prefill_reply = b""  # of a pair, once it is there
        self._turn_id = turn_id
        self.prefill_ledger = placement.prefill.ranks[placement.prefill_rank]
        self.decode_ledger = placement.decode.ranks[placement.decode_rank]
        self._port = port
        self.stream: Callable[[bytes], None] = self._stream_merged if merge_logprobs else port.write
        self._strip_details = strip_details
        self._reply_headers = reply_headers
        self._first_event_ms = first_event_within_ms
        self._clock = clock
        self._on_result = on_result
        self._on_prefilled = on_prefilled
        self._abort_on = abort_on
        self.assumed: Sequence[Assumed] = ()  # to be taken back if the prompt is never computed
        self.suspects: Suspects | None = None  # of the tries before
        self.prefilled = False  # the prefill leg is done, or a first event came
        self._exchanges: list[Exchange] = []
        self._over = False
        self._prompt_logprobs: PromptLogprobs | None = None
        self._held: list[Callable[[], None]] = []  # what waits for the prefill leg's reply, in order

    def usage(self) -> bytes | None:
        """The reply's raw usage object, however it came."""
        if self.whole_reply is not None:
            return self.dialect.usage(self.whole_reply)
        return self.observer.usage if self.observer else None

    def details(self) -> bytes | None:
        """SGLang's cache details, raw."""
        if self.whole_reply is not None:
            return details(self.whole_reply)
        return self.observer.details if self.observer else None

    def finish_reason(self) -> str | None:
        if self.whole_reply is not None:
            return self.dialect.finish_reason(self.whole_reply)
        return self.observer.finish_reason if self.observer else None

    def closed_tool_calls(self) -> tuple[str, ...]:
        return self.observer.closed_tool_calls if self.observer else ()

    def book(self, prompt_tokens: int) -> None:
        """Count the turn on its workers before a byte is sent: the next decision must see it."""
        placement = self.placement
        uncached = max(0, prompt_tokens - placement.decision.chosen.cut_tokens)
        terms = placement.decision.chosen.terms
        doubted_ms = doubted_at(self.dispatched_ms, terms.ttft_ms)
        over_ms = inf if placement.disaggregated or self.observer is not None else self.dispatched_ms + terms.ttft_ms
        work = Work(uncached, terms.compute_ms, terms.transfer_ms, prompt_tokens, doubted_ms, over_ms)
        self.prefill_ledger.book_prefill(self._turn_id, work, self.dispatched_ms)
        self.decode_ledger.book_decode(self._turn_id, prompt_tokens, self.dispatched_ms)
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
        self._port.attach(exchange)

    def cancel(self) -> None:
        """The client left or the gateway stops: drop both legs and free what they held, at once."""
        if not self._over:
            self._drop_legs()
            self._settle(self._clock())
            self._release_trials()
            self._judge_silence(self._clock())
            self._on_result = self.stream = _told

    def _judge_silence(self, now_ms: float) -> None:
        """Clients often give up before `first_byte_s`: a worker that swallows requests would never be charged with one. Of a
        whole reply nothing comes until all of it is there, so that its silence says nothing."""
        if self.observer is None:
            return
        silent_ms = now_ms - self.dispatched_ms
        patience_ms = max(_SILENT_MS, _SILENT_TIMES * self.placement.decision.chosen.terms.ttft_ms)
        if self.first_event_ms is not None or silent_ms < patience_ms:
            return
        prefill, decode = self.placement.prefill, self.placement.decode
        for worker in {decode} if self.prefilled else {prefill, decode}:
            worker.breaker.on_failure(now_ms)
            worker.last_fault = f"nothing came for {silent_ms / 1000:.0f} s, then the client left"
            worker.doubted.set()

    # what the legs report

    def prefill_done(self, reply: bytes) -> None:
        self.prefilled = True
        self.prefilled_ms = self._clock()
        self.prefill_reply = reply
        self._settle_prefill(self._clock())
        if self.wants_prefill_reply:
            self._prompt_logprobs = PromptLogprobs(reply)
            held, self._held = self._held, []
            for call in held:
                call()

    def first_event(self, headers: list[Header]) -> None:
        self.prefilled = True
        self.first_event_ms = self._clock()
        self.first_batch_ms = self.decode_ledger.batch_ms(self.first_event_ms)
        self._settle_prefill(self.first_event_ms)
        self._clear_suspicion(self.first_event_ms)
        self._port.start_stream(end_to_end(headers, _DROPPED_REPLY_HEADERS) + self._reply_headers)

    def _stream_merged(self, events: bytes) -> None:
        if self._prompt_logprobs is not None:
            self._port.write(self._prompt_logprobs.complete_events(events))
        else:
            self._held.append(lambda: self._stream_merged(events))

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
        self._settle(self._clock())
        committed = self._port.committed
        if committed:
            self._port.abort()
        self._release_trials(but=worker)
        self._tell(Failed(error, worker, committed))

    def overdue(self) -> bool:
        return self._clock() - self.dispatched_ms > self._first_event_ms

    def _clear_suspicion(self, now_ms: float) -> None:
        """This worker serves what others answered with a 5xx."""
        if self.suspects is not None:
            self.suspects.another_serves(now_ms)

    def _succeed(self) -> None:
        self._over = True
        now_ms = self._clock()
        self._settle(now_ms)
        self._clear_suspicion(now_ms)
        self.placement.decode.breaker.on_success()
        if self.placement.disaggregated:
            self.placement.prefill.breaker.on_success()
        self._tell(None)

    def _tell(self, failed: Failed | None) -> None:
        """Once; the caller is let go, so that nothing of a turn waits for the cycle collector."""
        on_result, self._on_result, self.stream = self._on_result, _told, _told
        on_result(failed)

    def _release_trials(self, but: Worker | None = None) -> None:
        """A leg that was not judged may have been its worker's one trial: it may be taken again."""
        for worker in (self.placement.prefill, self.placement.decode):
            if worker is not but:
                worker.breaker.on_abandoned()

    def _drop_legs(self) -> None:
        self._over = True
        for exchange in self._exchanges:
            exchange.abort()
        if self.placement.disaggregated:
            self._abort_on(self.placement.prefill)
            self._abort_on(self.placement.decode)

    def _settle(self, now_ms: float) -> None:
        self._settle_prefill(now_ms)
        self.decode_ledger.settle_decode(self._turn_id, now_ms)

    def _settle_prefill(self, now_ms: float) -> None:
        self.prefill_ledger.settle_prefill(self._turn_id, now_ms)
        on_prefilled, self._on_prefilled = self._on_prefilled, _nothing
        on_prefilled()


def _nothing() -> None:
    """It was told before."""


def _told(_: object) -> None:
    """Nobody listens any more."""
