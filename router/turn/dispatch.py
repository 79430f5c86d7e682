"""Steps 4 to 8 of one turn: admit, place, send, and try elsewhere until the first real event has gone out.

One task a turn, owned by the server. The client leaving cancels that task; whatever it held is freed on the way out.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from router.clock import Clock
from router.config.tree import Config
from router.errors import ClientFault, EngineBusy, EngineError, GatewayError, NoWorker, StaleConnection
from router.fleet.aborter import Aborter
from router.fleet.pool import Pool
from router.threads.sighting import Sighting
from router.threads.store import ThreadStore
from router.turn.attempt import Attempt, Failed
from router.turn.budget import RetryBudget
from router.turn.legs import Leg, PrefillLeg, ReplyLeg
from router.turn.locate import assume, locate
from router.turn.metrics import TurnMetrics
from router.turn.place import Placement, place
from router.turn.port import ReplyPort
from router.turn.record import pair_name
from router.turn.request_legs import build_legs
from router.turn.turn import Turn, cost_turn
from router.wire.exchange import Exchange
from router.wire.head import Header
from router.wire.upstream import UpstreamPool

_STALE_TRIES = 2  # fresh connections to the same worker after dead pooled ones, on top of the tries


class Dispatcher:
    """Sends turns. `run` returns when the reply has gone to `port`, or raises what the client must be told."""

    def __init__(
        self,
        config: Config,
        upstream: UpstreamPool,
        aborter: Aborter,
        threads: ThreadStore,
        metrics: TurnMetrics,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._retry = config.retry
        self._timeouts = config.timeouts
        self._hide_client_key = bool(config.auth.api_keys)
        self._upstream = upstream
        self._aborter = aborter
        self._threads = threads
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._budget = RetryBudget(config.retry)
        self._turn_ids = itertools.count(1)

    def next_turn_id(self) -> int:
        return next(self._turn_ids)

    @asynccontextmanager
    async def permit(self, turn: Turn) -> AsyncIterator[None]:
        """Hold one of the pool's permits. Raises QueueFull or QueueTimeout."""
        admission = turn.pool.admission
        if not admission.try_acquire():
            await admission.acquire(turn.sighting.session_started_ms)
        try:
            yield
        finally:
            admission.release()

    async def run(self, turn: Turn, port: ReplyPort) -> None:
        """Admit and try. Raises GatewayError while nothing real has gone out, else CommittedFailure: the port was aborted."""
        async with self.permit(turn):
            await self.tries(turn, port)

    async def tries(self, turn: Turn, port: ReplyPort, override: bytes = b"") -> None:
        """Under a permit: try until the reply has gone to `port`. `override`: members that replace the client's."""
        self._budget.on_turn(self._clock())
        stale = 0
        error: GatewayError | None = None  # of the try before: says more than that nobody is left
        while True:
            try:
                failed = await self._try(turn, port, override)
            except NoWorker as nobody:
                raise error or nobody from None
            if failed is None:
                return
            error = failed.error
            self._count(failed)
            if failed.committed:
                raise CommittedFailure(failed.error)
            if isinstance(failed.error, StaleConnection) and stale < _STALE_TRIES:
                stale += 1
                continue
            turn.failed.add(failed.worker.worker_id)
            if not self._may_retry(turn, failed.error):
                raise failed.error
            self._metrics.retries[failed.error.code or "error"] += 1

    async def _try(self, turn: Turn, port: ReplyPort, override: bytes) -> Failed | None:
        turn.tries += 1
        attempt = self._start(turn, port, override)
        try:
            result = await attempt.result
        finally:
            attempt.cancel()
        return result if isinstance(result, Failed) else None

    def _start(self, turn: Turn, port: ReplyPort, override: bytes) -> Attempt:
        """Place one try and send its legs. Raises NoWorker when nobody is left."""
        now_ms = self._clock()
        located = locate(turn.pool, turn.sighting, now_ms)
        cost = cost_turn(turn.sighting)
        placement = place(turn.pool, cost, located.residencies, failed=turn.failed, now_ms=now_ms, rng=self._rng)
        rid = turn.pool.adapter.request_id(turn.request.path, f"{self._rng.getrandbits(128):032x}")
        attempt = Attempt(
            turn.turn_id,
            placement,
            port,
            turn.dialect,
            strip_usage=not turn.scanned.asks_usage,
            strip_details=not turn.scanned.asks_details,
            merge_logprobs=placement.disaggregated and turn.scanned.asks_prompt_logprobs,
            reply_headers=reply_headers(turn, placement),
            clock=self._clock,
            abort_on=lambda worker: self._aborter.abort(worker, rid),
        )
        turn.attempt = attempt
        legs = build_legs(turn, placement, rid, self._rng, hide_client_key=self._hide_client_key, override=override)
        attempt.book(turn.sighting.prompt_tokens)
        assume(turn.pool, turn.sighting, placement, located, now_ms)
        chosen = placement.decision.chosen
        self._threads.committed(turn.sighting.thread, chosen.prefill, chosen.decode, now_ms)
        attempt.begin(legs, self._send)
        return attempt

    def preview(self, pool: Pool, sighting: Sighting, now_ms: float) -> Placement:
        """Where a turn would go now, with every alternative and the reason."""
        residencies = locate(pool, sighting, now_ms).residencies
        rng = Random(0)  # a dry run must not move the real generator
        return place(pool, cost_turn(sighting), residencies, failed=frozenset(), now_ms=now_ms, rng=rng, explain=True)

    def _send(self, leg: Leg, sink: ReplyLeg | PrefillLeg) -> Exchange:
        return self._upstream.start(
            leg.worker.origin,
            leg.head,
            leg.body,
            sink,
            first_byte_timeout_s=self._timeouts.first_byte_s,
            idle_timeout_s=self._timeouts.idle_s,
        )

    def _count(self, failed: Failed) -> None:
        """Only what is the engine's own fault reaches its breaker: neither back-pressure nor a bad request."""
        error = failed.error
        if isinstance(error, EngineError) and not isinstance(error, EngineBusy | StaleConnection):
            failed.worker.breaker.on_failure(self._clock())
            failed.worker.last_fault = error.message
            return
        failed.worker.breaker.on_abandoned()
        if isinstance(error, EngineBusy):
            failed.worker.full_until_ms = self._clock() + 1000 * (error.retry_after_s or 0.0)

    def _may_retry(self, turn: Turn, error: GatewayError) -> bool:
        if isinstance(error, ClientFault) or not isinstance(error, EngineError):
            return False
        return turn.tries < self._retry.max_tries and self._budget.take(self._clock())


class CommittedFailure(Exception):
    """The reply broke after its first event: the client was aborted and nothing can be said any more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def reply_headers(turn: Turn, placement: Placement) -> list[Header]:
    return [
        (b"x-loadback-request-id", turn.request_id.encode()),
        (b"x-loadback-worker", pair_name(placement.decision).encode()),
        (b"x-loadback-thread", turn.sighting.thread.encode()),
        (b"x-loadback-predicted-ms", b"%.1f" % placement.decision.chosen.terms.total_ms),
    ]
