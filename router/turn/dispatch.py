"""Steps 4 to 7 of one turn: locate, decide, and send a try to the workers that the decision names."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from costmodel.values import Residency, WorkerKey
from router.clock import Clock
from router.config.tree import Config
from router.errors import ConnectFailed, EngineBusy, EngineDied, EngineError, EngineStatus, GatewayError, StaleConnection
from router.fleet.aborter import Aborter
from router.fleet.hold import Held, Hold, Offer, Standing
from router.fleet.pool import Pool
from router.threads.sighting import Sighting
from router.threads.store import ThreadStore
from router.turn.attempt import Attempt, Failed, OnResult
from router.turn.budget import RetryBudget
from router.turn.legs import Leg, PrefillLeg, ReplyLeg
from router.turn.locate import assume, locate, retract
from router.turn.metrics import TurnMetrics
from router.turn.observe import StreamObserver
from router.turn.place import Placement, explain, place
from router.turn.port import ReplyPort
from router.turn.record import pair_name
from router.turn.request_legs import build_legs
from router.turn.tries import Tries
from router.turn.turn import Turn, cost_turn
from router.turn.watcher import TurnWatcher
from router.wire.exchange import Exchange
from router.wire.head import Header
from router.wire.upstream import UpstreamPool

_REGRET_EVERY = 16  # turns, for one whose runner-up is remembered
_REST_MS = 1000.0  # a worker that was not there is left out this long while its health is looked at


class Dispatcher:
    """Starts tries (`router.turn.tries.Sender`), and says how often one may be repeated."""

    def __init__(
        self,
        config: Config,
        upstream: UpstreamPool,
        aborter: Aborter,
        threads: ThreadStore,
        metrics: TurnMetrics,
        clock: Clock,
        rng: Random,
        watcher: TurnWatcher | None = None,
    ) -> None:
        self._watcher = watcher
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
        self.holds = {pool.name: Hold(config.admission.hold_ms, clock, _call_later) for pool in config.pools}
        self._turn_ids = itertools.count(1)
        if watcher is not None:
            watcher.listen(self._released)

    def next_turn_id(self) -> int:
        return next(self._turn_ids)

    async def tries(self, turn: Turn, port: ReplyPort, override: bytes) -> None:
        """`Tries` for a task that waits for them. Raises what the client must be told, or CommittedFailure."""
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def end(error: Exception | None) -> None:
            if not ended.done():  # the task that waited may have been cancelled in the same step
                ended.set_result(error)

        tries = Tries(self, turn, port, end, override)
        tries.begin()
        try:
            error = await ended
        finally:
            tries.cancel()
        if error is not None:
            raise error

    def start(
        self, turn: Turn, port: ReplyPort, override: bytes, on_result: OnResult, standing: Standing
    ) -> Attempt | WorkerKey:
        """As `Sender` says. `override`: members that replace the client's."""
        now_ms = self._clock()
        pool, sighting, scanned = turn.pool, turn.sighting, turn.scanned
        located = locate(pool, sighting, now_ms)
        cost = cost_turn(sighting, turn.left_ms(now_ms))
        placement = place(
            pool,
            cost,
            located.residencies,
            failed=turn.failed,
            now_ms=now_ms,
            rng=self._rng,
            due=turn.due,
            with_rival=turn.turn_id % _REGRET_EVERY == 0,
        )
        chosen = placement.decision.chosen
        if turn.tries == 0:
            if self._must_wait(turn, placement, located.residencies, standing, now_ms):
                return chosen.prefill
            self._budget.on_turn(now_ms)
        rid = pool.adapter.request_id(turn.request.path, f"{self._rng.getrandbits(128):032x}")
        strip_details = not scanned.asks_details
        observer = None
        if scanned.stream:
            observer = self._observer(turn, placement, strip_details=strip_details)
        attempt = Attempt(
            turn.turn_id,
            placement,
            port,
            turn.dialect,
            observer,
            strip_details=strip_details,
            merge_logprobs=placement.disaggregated and scanned.asks_prompt_logprobs,
            reply_headers=reply_headers(turn, placement),
            first_event_within_ms=self._timeouts.first_byte_s * 1000,
            clock=self._clock,
            on_result=on_result,
            on_prefilled=partial(self._freed, sighting.thread, self.holds[pool.name], chosen.prefill),
            abort_on=lambda worker: self._aborter.abort(worker, rid),
        )
        attempt.suspects = turn.suspects
        turn.attempt = attempt
        turn.tries += 1
        legs = build_legs(turn, placement, rid, self._rng, hide_client_key=self._hide_client_key, override=override)
        attempt.assumed = assume(pool, sighting, placement, located, now_ms)
        self._threads.committed(sighting.thread, chosen.prefill, chosen.decode, now_ms)
        attempt.book(sighting.prompt_tokens)
        attempt.begin(legs, self._send)
        if self._watcher is not None:
            self._watcher.sent(turn)
        return attempt

    def hold(self, turn: Turn, worker: WorkerKey, offer: Offer) -> Held:
        """As `Sender` says."""
        return self.holds[turn.pool.name].wait(worker, turn.arrived_ms, offer)

    def _must_wait(
        self, turn: Turn, placement: Placement, residencies: Mapping[WorkerKey, Residency], standing: Standing, now_ms: float
    ) -> bool:
        """For room at the worker, or for pages that its engine does not find by itself."""
        worker = placement.decision.chosen.prefill
        ahead = placement.prefill.ranks[placement.prefill_rank].ahead(now_ms)
        waits = self.holds[turn.pool.name].must_wait(worker, ahead, standing)
        if self._watcher is None:
            return waits
        if standing is Standing.COMES and (waits or _lies_away(residencies.get(worker), placement.prefill.node)):
            self._watcher.comes(turn, worker, full=waits)
        return waits or self._watcher.fetches(turn, worker)

    def _freed(self, thread: str, hold: Hold, worker: WorkerKey) -> None:
        """Not at once: this is called in the middle of another turn's callback."""
        if self._watcher is not None:
            self._watcher.prefilled(thread)
        if hold.waiting:
            asyncio.get_running_loop().call_soon(hold.freed, worker)

    def _released(self, worker: WorkerKey) -> None:
        for hold in self.holds.values():
            if hold.waiting:
                hold.freed(worker)

    def _observer(self, turn: Turn, placement: Placement, *, strip_details: bool) -> StreamObserver:
        on_tool = None
        if self._watcher is not None:
            worker = placement.decision.chosen.prefill
            on_tool = partial(self._watcher.tool_closed, turn.sighting.thread, worker, turn.request.headers)
        strip_usage = not turn.scanned.asks_usage
        return StreamObserver(turn.dialect, strip_usage=strip_usage, strip_details=strip_details, on_tool=on_tool)

    def preview(self, pool: Pool, sighting: Sighting, deadline_ms: float | None, now_ms: float) -> Placement:
        """Where a turn would go now, with every alternative and the reason."""
        residencies = locate(pool, sighting, now_ms).residencies
        return explain(pool, cost_turn(sighting, deadline_ms), residencies, now_ms)

    def _send(self, leg: Leg, sink: ReplyLeg | PrefillLeg) -> Exchange:
        return self._upstream.start(
            leg.worker.origin,
            leg.head,
            leg.body,
            sink,
            first_byte_timeout_s=self._timeouts.first_byte_s,
            idle_timeout_s=self._timeouts.idle_s,
        )

    def count(self, turn: Turn, failed: Failed) -> None:
        """Only what is the engine's own fault reaches its breaker: neither back-pressure nor a bad request, and a 5xx only when
        it is known whose fault it is."""
        error = failed.error
        if turn.attempt is not None and not turn.attempt.prefilled:
            retract(turn.pool, turn.attempt.assumed)
        if isinstance(error, EngineError) and not isinstance(error, EngineBusy | StaleConnection):
            if isinstance(error, EngineStatus) and not failed.committed:
                turn.suspects.add(failed.worker)
            else:
                failed.worker.breaker.on_failure(self._clock(), answered=isinstance(error, EngineStatus))
            failed.worker.last_fault = error.message
            failed.worker.doubted.set()
            if isinstance(error, ConnectFailed | EngineDied):
                failed.worker.full_until_ms = self._clock() + _REST_MS
            return
        failed.worker.breaker.on_abandoned()
        if isinstance(error, StaleConnection):
            self._upstream.drop_idle(failed.worker.origin)  # the others were opened no later: the next try gets a fresh one
        if isinstance(error, EngineBusy):
            failed.worker.full_until_ms = self._clock() + 1000 * (error.retry_after_s or 0.0)

    def may_try_again(self, turn: Turn, error: GatewayError) -> bool:
        if not isinstance(error, EngineError) or turn.tries >= self._retry.max_tries or not self._budget.take(self._clock()):
            return False
        self._metrics.retries[error.code or "error"] += 1
        return True


def _lies_away(residency: Residency | None, node: str) -> bool:
    """Whether some of the prompt lies on another node than the worker's."""
    return residency is not None and any(run.source not in ("", node) for run in residency.runs)


def reply_headers(turn: Turn, placement: Placement) -> list[Header]:
    return [
        (b"x-loadback-request-id", turn.request_id.encode()),
        (b"x-loadback-worker", pair_name(placement.decision).encode()),
        (b"x-loadback-thread", turn.sighting.thread.encode()),
        (b"x-loadback-predicted-ms", b"%.1f" % placement.decision.chosen.terms.total_ms),
    ]


def _call_later(delay_ms: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay_ms / 1000, call)
