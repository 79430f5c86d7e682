"""The service of one turn from admission to its last byte: waits for a place if it must, tries, and answers what went wrong.

With a free place it costs no task: everything after that happens in callbacks of the byte path. The client leaving drops
whatever the turn waits for, and what it held is freed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from router.config.tree import TimeoutConfig
from router.errors import GatewayError, Shed
from router.turn.dispatch import Dispatcher, reply_headers
from router.turn.fanout import FanOut
from router.turn.metrics import TurnMetrics
from router.turn.port import ClientPort
from router.turn.record import Outcome
from router.turn.tries import CommittedFailure, Tries
from router.turn.turn import Turn
from router.wire.head import Header

_log = structlog.get_logger(__name__)
_JSON: Header = (b"content-type", b"application/json")
_LEFT_STATUS = 499


class Service:
    """`begin` once; `on_end` is called once, when nothing of the turn is left."""

    __slots__ = ("_dispatcher", "_holds_place", "_metrics", "_on_end", "_port", "_prepare", "_task", "_tries", "_turn")

    def __init__(
        self,
        turn: Turn,
        dispatcher: Dispatcher,
        metrics: TurnMetrics,
        timeouts: TimeoutConfig,
        on_end: Callable[[Turn, Outcome, int], None],
        prepare: Callable[[Turn], Awaitable[None]] | None = None,
    ) -> None:
        """`prepare` is waited for before the first try."""
        self._turn = turn
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._on_end = on_end
        self._prepare = prepare
        self._port = ClientPort(turn.request.downstream, turn.dialect, timeouts, metrics.kept_alive)
        self._holds_place = False
        self._tries: Tries | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> Awaitable[None] | None:
        """What the server must run as a task, if the turn needs one."""
        turn = self._turn
        turn.request.downstream.on_disconnect = self._left
        if turn.scanned.stream:
            self._port.keep_open(lambda: early_headers(turn))
        self._holds_place = turn.pool.admission.try_acquire()
        if turn.scanned.n > 1 and turn.pool.disaggregated:
            return self._run(self._fan_out)
        if not self._holds_place or self._prepare is not None:
            return self._run(self._try)
        self._try_at_once()
        return None

    async def _run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """The turn as a task: wait for a place, then serve. Cancelled when the client leaves."""
        if self._turn.request.downstream.disconnected:  # before this task had begun
            self._end(Outcome.LEFT, _LEFT_STATUS)
            return
        self._task = asyncio.current_task()
        try:
            if not self._holds_place:
                await self._turn.pool.admission.acquire(self._turn.sighting.session_started_ms)
                self._holds_place = True
            if self._prepare is not None:
                await self._prepare(self._turn)
            await serve()
        except asyncio.CancelledError:
            self._end(Outcome.LEFT, _LEFT_STATUS)
            raise
        except Exception as error:  # noqa: BLE001  the root of this task: `_done` tells what it was
            self._done(error)

    async def _try(self) -> None:
        self._try_at_once()

    def _try_at_once(self) -> None:
        self._task = None
        self._tries = Tries(self._dispatcher, self._turn, self._port, self._done)
        self._tries.begin()

    async def _fan_out(self) -> None:
        await FanOut(self._dispatcher).run(self._turn, self._port)
        self._end(Outcome.SERVED, 200)

    def _left(self) -> None:
        """Some clients hang up on the event that ends a stream, before its framing does: they have been served."""
        attempt = self._turn.attempt
        if self._task is not None:
            self._task.cancel()
        elif self._tries is not None:
            self._tries.cancel()
            if attempt is not None and attempt.observer is not None and attempt.observer.ended:
                self._end(Outcome.SERVED, 200)
            else:
                self._end(Outcome.LEFT, _LEFT_STATUS)

    def _done(self, error: Exception | None) -> None:
        if error is None:
            self._end(Outcome.SERVED, 200)
        elif isinstance(error, CommittedFailure):
            _log.warning("reply_aborted", request=self._turn.request_id, error=str(error.error))
            self._end(Outcome.ABORTED, 200)
        elif isinstance(error, GatewayError):
            self._refuse(error)
        else:
            self._metrics.crashes += 1
            _log.error("turn_crashed", request=self._turn.request_id, exc_info=error)
            self._refuse(GatewayError("internal error"))

    def _refuse(self, error: GatewayError) -> None:
        turn = self._turn
        if isinstance(error, Shed) and turn.due is not None:
            self._metrics.shed[turn.due.name] += 1
        self._port.respond(error.status, [*error_headers(error), *early_headers(turn)], turn.dialect.error_body(error))
        self._end(Outcome.REFUSED, error.status)

    def _end(self, outcome: Outcome, status: int) -> None:
        self._port.close()
        self._tries = self._task = None  # what leads back here: nothing of a turn waits for the cycle collector
        if self._holds_place:
            self._holds_place = False
            self._turn.pool.admission.release()
        self._on_end(self._turn, outcome, status)


def early_headers(turn: Turn) -> list[Header]:
    """Names the worker of the try that runs; before the first try only the request and its thread."""
    if turn.attempt is not None:
        return reply_headers(turn, turn.attempt.placement)
    return [
        (b"x-loadback-request-id", turn.request_id.encode()),
        (b"x-loadback-thread", turn.sighting.thread.encode()),
    ]


def error_headers(error: GatewayError) -> list[Header]:
    """Every 429 and 503 says when to come back: without it clients give up at once or hammer."""
    if error.retry_after_s is None:
        return [_JSON]
    return [_JSON, (b"retry-after", b"%d" % max(1, round(error.retry_after_s)))]
