"""One operation of a client: some requests to one agent, all of which have one deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from kvtier.client.channel import AgentUnavailable
from kvtier.client.meetings import Meeting
from kvtier.wire.messages import Request

_Answer = TypeVar("_Answer")


class Call:
    """Raises `AgentUnavailable`, also for answers that are none, and `AgentRefused`."""

    def __init__(self, met: Meeting, until_s: float) -> None:
        self.space = met.space
        self.memory = met.memory
        self._channel = met.channel
        self._until_s = until_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def ask(self, request: Request, answer: type[_Answer]) -> _Answer:
        (number,) = self.send(request)
        return self.receive(number, answer)

    def send(self, *requests: Request) -> Sequence[int]:
        """Ask, and go on. Answers must be received in the order in which was asked; one that is passed over is lost."""
        return self._channel.send(requests, self.left_s)

    def receive(self, number: int, answer: type[_Answer]) -> _Answer:
        reply = self._channel.receive(number, self.left_s)
        if not isinstance(reply, answer):
            raise AgentUnavailable(f"{type(reply).__name__} is not the {answer.__name__} that was asked for")
        return reply
