"""What may be told of every turn while it lives, to whoever plans ahead. Calls must return at once and never raise."""

from __future__ import annotations

from typing import Protocol

from costmodel.values import WorkerKey
from router.turn.record import TurnRecord
from router.turn.turn import Turn
from router.wire.head import Header


class TurnWatcher(Protocol):
    def sent(self, turn: Turn) -> None:
        """A try was placed and sent; `turn.attempt` has it."""

    def held(self, turn: Turn, worker: WorkerKey) -> None:
        """It has come, and waits for room at this worker; `sent` follows, there or elsewhere."""

    def tool_closed(self, thread: str, worker: WorkerKey, headers: list[Header], tool: str) -> None:
        """A tool call of the reply that runs for `thread` is complete. `worker` has computed its prompt; `headers` are the
        client's. The turn itself would be held by what it holds."""

    def ended(self, turn: Turn, record: TurnRecord) -> None:
        """Nothing of the turn is left."""
