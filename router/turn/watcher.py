"""What may be told of every turn while it lives, to whoever plans ahead. Calls must return at once and never raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from costmodel.values import WorkerKey
from router.turn.record import TurnRecord
from router.turn.turn import Turn
from router.wire.head import Header


class TurnWatcher(Protocol):
    def listen(self, released: Callable[[WorkerKey], None]) -> None:
        """`released` is called, in a step of the loop of its own, when a turn that waits for its pages may go to a worker."""

    def sent(self, turn: Turn) -> None:
        """A try was placed and sent; `turn.attempt` has it."""

    def comes(self, turn: Turn, worker: WorkerKey, *, full: bool) -> None:
        """It has come, and waits for room at this worker, which is `full`, or some of its pages lie on another node; `sent`
        follows, there or elsewhere."""

    def fetches(self, turn: Turn, worker: WorkerKey) -> bool:
        """Whether it should wait until its pages have come near this worker."""

    def prefilled(self, thread: str) -> None:
        """The prefill of the thread's turn is over, or was given up: who waits behind it is nearer to its turn."""

    def tool_closed(self, thread: str, worker: WorkerKey, headers: list[Header], tool: str) -> None:
        """A tool call of the reply that runs for `thread` is complete. `worker` has computed its prompt; `headers` are the
        client's. The turn itself would be held by what it holds."""

    def ended(self, turn: Turn, record: TurnRecord) -> None:
        """Nothing of the turn is left."""
