"""The tries of one turn, one after the other, until its reply has gone out or must not be tried again.

Nothing waits here: what became of one try starts the next. Refuses to know how a try is placed and sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from costmodel.values import WorkerKey
from router.errors import GatewayError, NoWorker, StaleConnection
from router.fleet.hold import Held, Offer, Standing
from router.turn.attempt import Attempt, Failed, OnResult
from router.turn.port import ReplyPort
from router.turn.turn import Turn

_STALE_TRIES = 2  # fresh connections to the same worker after dead pooled ones, on top of the tries


class CommittedFailure(Exception):
    """The reply broke after its first event: the client was aborted and nothing can be said any more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Sender(Protocol):
    """Starts tries and counts what became of them."""

    def start(
        self, turn: Turn, port: ReplyPort, override: bytes, on_result: OnResult, standing: Standing
    ) -> Attempt | WorkerKey:
        """Place one try and send its legs; a worker is the one that it must wait for instead. Raises NoWorker when nobody is
        left."""
        ...

    def hold(self, turn: Turn, worker: WorkerKey, offer: Offer) -> Held:
        """Put it in line for this worker."""
        ...

    def count(self, turn: Turn, failed: Failed) -> None:
        """Tell breaker, worker and index what has failed."""
        ...

    def may_try_again(self, turn: Turn, error: GatewayError) -> bool:
        """Whether another worker may be asked; spends one of the retries that are left."""
        ...


class Tries:
    """`begin` once. `done` is called once, unless `cancel` comes before it: with nothing when the reply has gone to the port,
    else with what the client must be told; with `CommittedFailure` where it cannot be told any more."""

    __slots__ = ("_done", "_error", "_override", "_port", "_running", "_sender", "_stale", "_turn")

    def __init__(
        self, sender: Sender, turn: Turn, port: ReplyPort, done: Callable[[Exception | None], None], override: bytes = b""
    ) -> None:
        self._sender = sender
        self._turn = turn
        self._port = port
        self._done = done
        self._override = override  # members that replace the client's
        self._running: Attempt | Held | None = None
        self._stale = 0
        self._error: GatewayError | None = None  # of the try before: says more than that nobody is left

    def begin(self) -> None:
        worker = self._start(Standing.COMES)
        if worker is not None:
            self._running = self._sender.hold(self._turn, worker, self._start)

    def cancel(self) -> None:
        """The client left: drop the try that runs or waits and free what it holds, at once."""
        if self._running is not None:
            self._running.cancel()

    def _start(self, standing: Standing) -> WorkerKey | None:
        """None when a try runs or all is over, else the worker to wait for."""
        try:
            started = self._sender.start(self._turn, self._port, self._override, self._on_result, standing)
        except NoWorker as nobody:
            self._done(self._error or nobody)
        except Exception as error:  # noqa: BLE001  the root of what callbacks do: `done` knows what to do with a fault of ours
            self._done(error)
        else:
            if isinstance(started, WorkerKey):
                return started
            self._running = started
        return None

    def _on_result(self, failed: Failed | None) -> None:
        if failed is None:
            self._done(None)
            return
        error = self._error = failed.error
        self._sender.count(self._turn, failed)
        if failed.committed:
            self._done(CommittedFailure(error))
            return
        if isinstance(error, StaleConnection) and self._stale < _STALE_TRIES:
            self._stale += 1
            self._turn.tries -= 1  # nothing was tried: the connection had died before
            self.begin()
            return
        self._turn.failed.add(failed.worker.worker_id)
        if self._sender.may_try_again(self._turn, error):
            self.begin()
        else:
            self._done(error)
