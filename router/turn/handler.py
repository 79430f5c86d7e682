"""One hot request from its complete body to its record: steps 1, 2 and 9 around the dispatcher's 3 to 8."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import NamedTuple

import structlog

from router.auth import check_client
from router.body.edits import refuse_reserved
from router.body.scan import Scanner
from router.clock import Clock
from router.config.tree import Config
from router.dialects import DIALECTS
from router.errors import GatewayError, NotServed
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.threads.keys import read_hints
from router.threads.lineage import State
from router.threads.sighting import Sighting
from router.threads.store import ThreadStore
from router.turn.dispatch import CommittedFailure, Dispatcher, reply_headers
from router.turn.extend import Extender
from router.turn.fanout import FanOut
from router.turn.learn import learn, record_of
from router.turn.metrics import TurnMetrics
from router.turn.place import Placement
from router.turn.port import ClientPort
from router.turn.record import Outcome, RecordLog
from router.turn.turn import Turn
from router.wire.head import Header
from router.wire.request import HotRequest

_log = structlog.get_logger(__name__)
_JSON: Header = (b"content-type", b"application/json")


class Preview(NamedTuple):
    """The answer of a dry run."""

    model: str
    pool: Pool
    sighting: Sighting
    placement: Placement


class TurnHandler:
    """Called by the server with every hot request; one task a turn. `records` keeps the last decisions."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        threads: ThreadStore,
        scanner: Scanner[State],
        dispatcher: Dispatcher,
        extender: Extender,
        metrics: TurnMetrics,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._threads = threads
        self._scanner = scanner
        self._dispatcher = dispatcher
        self._fan_out = FanOut(dispatcher)
        self._extender = extender
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self.records = RecordLog(config.log.decisions_kept)

    async def handle(self, request: HotRequest) -> None:
        dialect = DIALECTS[request.path]
        try:
            turn = self.open(request)
        except GatewayError as error:
            request.downstream.respond(error.status, error_headers(error), dialect.error_body(error))
            return
        await self._serve(turn)

    def open(self, request: HotRequest) -> Turn:
        """Read and recognise; nothing is sent yet. Raises what is wrong with the request."""
        now_ms = self._clock()
        check_client(request.headers, self._config.auth.api_keys)
        dialect = DIALECTS[request.path]
        scanned = self._scanner.scan(request.body, dialect)
        pool = self._fleet.pool_for(scanned.model)
        refuse_reserved(scanned, pool.adapter.reserved_keys)
        if request.path not in pool.adapter.serves:
            raise NotServed(f"pool {pool.name!r} ({pool.adapter.kind.value}) does not serve {request.path}")
        sighting = self._threads.observe(scanned, read_hints(request.headers, scanned), now_ms)
        request_id = f"lb-{self._rng.getrandbits(96):024x}"
        return Turn(self._dispatcher.next_turn_id(), request_id, request, dialect, scanned, sighting, pool, now_ms, time.time())

    def preview(self, path: str, body: bytes, headers: list[Header]) -> Preview:
        """Where this body would go now. Nothing is sent, booked or remembered."""
        now_ms = self._clock()
        scanned = self._scanner.scan(body, DIALECTS[path])
        pool = self._fleet.pool_for(scanned.model)
        refuse_reserved(scanned, pool.adapter.reserved_keys)
        sighting = self._threads.look(scanned, read_hints(headers, scanned), now_ms)
        return Preview(scanned.model, pool, sighting, self._dispatcher.preview(pool, sighting, now_ms))

    async def _serve(self, turn: Turn) -> None:
        down = turn.request.downstream
        port = ClientPort(down, turn.dialect, self._config.timeouts, self._clock, self._on_keep_alive)
        task = asyncio.current_task()
        assert task is not None
        down.on_disconnect = lambda: self._left(task)
        outcome, status = Outcome.LEFT, 499
        if turn.scanned.stream:
            port.keep_open(lambda: self._early_headers(turn))
        try:
            await self._run(turn, port)
            outcome, status = Outcome.SERVED, 200
        except CommittedFailure as failure:
            outcome, status = Outcome.ABORTED, 200
            _log.warning("reply_aborted", request=turn.request_id, error=str(failure.error))
        except GatewayError as error:
            outcome, status = Outcome.REFUSED, error.status
            port.respond(error.status, [*error_headers(error), *self._early_headers(turn)], turn.dialect.error_body(error))
        finally:
            port.close()
            self._finish(turn, outcome, status)

    async def _run(self, turn: Turn, port: ClientPort) -> None:
        if turn.scanned.n > 1 and turn.pool.disaggregated:
            await self._fan_out.run(turn, port)
        else:
            await self._dispatcher.run(turn, port)

    def _finish(self, turn: Turn, outcome: Outcome, status: int) -> None:
        now_ms = self._clock()
        record = record_of(turn, outcome, status, now_ms)
        learn(turn, record, self._threads, now_ms)
        self.records.add(record)
        self._metrics.finished(record)
        if outcome is Outcome.SERVED:
            self._extender.extend(turn)
        if self._config.log.turns:
            _log.info(
                "turn",
                request=record.request_id,
                thread=record.thread,
                worker=record.worker,
                outcome=outcome.value,
                status=status,
                tries=record.tries,
                ttft_ms=record.ttft_ms,
                total_ms=round(record.total_ms, 1),
            )

    def _early_headers(self, turn: Turn) -> list[Header]:
        """Names the worker of the try that runs; before the first try only the request and its thread."""
        if turn.attempt is not None:
            return reply_headers(turn, turn.attempt.placement)
        return [
            (b"x-loadback-request-id", turn.request_id.encode()),
            (b"x-loadback-thread", turn.sighting.thread.encode()),
        ]

    def _left(self, task: asyncio.Task[None]) -> None:
        """The client is gone: whatever its turn waits for is dropped, and what it held is freed on the way out."""
        task.cancel()

    def _on_keep_alive(self) -> None:
        self._metrics.keep_alives += 1


def error_headers(error: GatewayError) -> list[Header]:
    """Every 429 and 503 says when to come back: without it clients give up at once or hammer."""
    if error.retry_after_s is None:
        return [_JSON]
    return [_JSON, (b"retry-after", b"%d" % max(1, round(error.retry_after_s)))]
