"""One hot request from its complete body to its record: steps 1, 2 and 9 around the service's 3 to 8."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import NamedTuple

import structlog

from router.auth import check_client
from router.body.edits import refuse_reserved
from router.body.scan import Scanner
from router.clock import Clock
from router.config.tree import Config
from router.dialects import DIALECTS
from router.errors import BadRequest, EncodedBody, GatewayError, NotServed
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.threads.keys import read_hints
from router.threads.lineage import State
from router.threads.sighting import Sighting
from router.threads.store import ThreadStore
from router.turn.dispatch import Dispatcher
from router.turn.due import Due, due_of, due_within
from router.turn.extend import Extender
from router.turn.learn import learn, record_of
from router.turn.metrics import TurnMetrics
from router.turn.place import Placement
from router.turn.record import Outcome, RecordLog
from router.turn.service import Service, error_headers
from router.turn.turn import Turn
from router.turn.watcher import TurnWatcher
from router.wire.head import Header
from router.wire.request import HotRequest

_log = structlog.get_logger(__name__)
_STOPPED_STATUS = 503  # of a turn that the end of the drain broke before its reply had begun


class Preview(NamedTuple):
    """The answer of a dry run."""

    model: str
    pool: Pool
    sighting: Sighting
    placement: Placement
    due: Due | None


class TurnHandler:
    """Called by the server with every hot request. `records` keeps the last decisions."""

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
        watcher: TurnWatcher | None = None,
        recall: Callable[[Turn], Awaitable[None]] | None = None,
        consult: Callable[[Turn], Awaitable[None]] | None = None,
    ) -> None:
        """`recall` brings what other gateways know of a turn's prompt, `consult` what others know of its blocks, each within
        its own deadline."""
        self._watcher = watcher
        self._recall = recall
        self._consult = consult
        self._config = config
        self._fleet = fleet
        self._threads = threads
        self._scanner = scanner
        self._dispatcher = dispatcher
        self._extender = extender
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._breaking = False
        self.records = RecordLog(config.log.decisions_kept)

    def handle(self, request: HotRequest) -> Awaitable[None] | None:
        """Serve one request. What it returns must be awaited as a task of its own; mostly nothing."""
        try:
            turn = self.open(request)
        except GatewayError as error:
            body = DIALECTS[request.path].error_body(error)
            request.downstream.respond(error.status, error_headers(error), body)
            return None
        service = Service(turn, self._dispatcher, self._metrics, self._config.timeouts, self._finish, self._prepare_of(turn))
        running = service.begin()
        self._extender.extend(turn)  # after its legs were sent, but for turns that must wait
        return running

    def _prepare_of(self, turn: Turn) -> Callable[[Turn], Awaitable[None]] | None:
        """What the first try must wait for, if anything."""
        prepare = self._extender.prepare if self._extender.wants_first(turn) else None
        recall, consult = self._recall, self._consult
        if consult is None and (prepare is None or recall is None):
            return prepare or recall
        first = [step for step in (prepare, recall) if step is not None]

        async def steps(turn: Turn) -> None:
            await asyncio.gather(*(step(turn) for step in first))
            if consult is not None:  # the blocks may be what was prepared
                await consult(turn)

        return steps

    def open(self, request: HotRequest) -> Turn:
        """Read and recognise; nothing is sent yet. Raises what is wrong with the request."""
        now_ms = self._clock()
        check_client(request.headers, self._config.auth.api_keys)
        dialect = DIALECTS[request.path]
        try:
            scanned = self._scanner.scan(request.body, dialect)
        except BadRequest:
            refuse_encoded(request.headers)
            raise
        pool = self._fleet.pool_for(scanned.model)
        refuse_reserved(scanned, pool.adapter.reserved_keys)
        if request.path not in pool.adapter.serves:
            raise NotServed(f"pool {pool.name!r} ({pool.adapter.kind.value}) does not serve {request.path}")
        due = due_of(self._fleet.policy_config, request.headers)
        sighting = self._threads.observe(scanned, read_hints(request.headers, scanned), now_ms)
        request_id = f"lb-{self._rng.getrandbits(96):024x}"
        turn = Turn(self._dispatcher.next_turn_id(), request_id, request, dialect, scanned, sighting, pool, now_ms, time.time())
        turn.due = due
        return turn

    def preview(self, path: str, body: bytes, headers: list[Header], deadline_ms: float | None = None) -> Preview:
        """Where this body would go now, due after `deadline_ms` if given. Nothing is sent, booked or remembered."""
        now_ms = self._clock()
        scanned = self._scanner.scan(body, DIALECTS[path])
        pool = self._fleet.pool_for(scanned.model)
        refuse_reserved(scanned, pool.adapter.reserved_keys)
        policy = self._fleet.policy_config
        due = due_of(policy, headers) if deadline_ms is None else due_within(policy, headers, deadline_ms)
        sighting = self._threads.look(scanned, read_hints(headers, scanned), now_ms)
        placement = self._dispatcher.preview(pool, sighting, due.ttft_ms if due else None, now_ms)
        return Preview(scanned.model, pool, sighting, placement, due)

    def before_break(self) -> None:
        """The drain is over: clients that turns lose from now on did not leave."""
        self._breaking = True

    def _finish(self, turn: Turn, outcome: Outcome, status: int) -> None:
        now_ms = self._clock()
        if self._breaking and outcome is Outcome.LEFT:
            outcome, status = Outcome.ABORTED, 200 if turn.request.downstream.started else _STOPPED_STATUS
            _log.warning("reply_aborted", request=turn.request_id, error="the gateway stopped before the reply's end")
        self._metrics.request_faults += turn.suspects.nobody_served(now_ms)
        record = record_of(turn, outcome, status, now_ms)
        learn(turn, record, self._threads, now_ms)
        self.records.add(record)
        self._metrics.finished(record)
        self._extender.finished(turn, record.facts, served=outcome is Outcome.SERVED)
        if self._watcher is not None:
            self._watcher.ended(turn, record)
        if self._config.log.turns:
            _log.info(
                "turn",
                request=record.request_id,
                thread=record.thread,
                worker=record.worker,
                outcome=outcome.value,
                status=status,
                tries=record.tries,
                ttft_ms=None if record.ttft_ms is None else round(record.ttft_ms, 1),
                total_ms=round(record.total_ms, 1),
            )


def refuse_encoded(headers: Iterable[Header]) -> None:
    """Raises `EncodedBody` for a body that is compressed: neither is it read here, nor do engines take one."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            encoding = value.decode("latin-1")[:40]
            raise EncodedBody(f"the body is {encoding}-encoded: send it without a content-encoding")
