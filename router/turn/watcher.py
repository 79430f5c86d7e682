"""What may be told of every turn while it lives, to whoever plans ahead. Calls must return at once and never raise."""

from __future__ import annotations

from typing import Protocol

from router.turn.record import TurnRecord
from router.turn.turn import Turn


class TurnWatcher(Protocol):
    def sent(self, turn: Turn) -> None:
        """A try was placed and sent; `turn.attempt` has it."""

    def tool_closed(self, turn: Turn, tool: str) -> None:
        """A tool call of the running reply is complete."""

    def ended(self, turn: Turn, record: TurnRecord) -> None:
        """Nothing of the turn is left."""
