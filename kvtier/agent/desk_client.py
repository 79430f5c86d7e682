"""A client of the desk inside the agent's own process."""

from __future__ import annotations

from kvtier.agent.desk import Answer, Desk
from kvtier.wire.messages import Reply, Request


class DeskClient:
    """Asks as one connection would that never ends. Not for leases and writes, and requests with payload in their answers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._owner = desk.enter()

    async def ask(self, request: Request) -> Reply:
        answer = self._desk.answer(self._owner, request)
        if not isinstance(answer, Answer):
            answer = await answer
        self._desk.finished(answer)
        return answer.reply
