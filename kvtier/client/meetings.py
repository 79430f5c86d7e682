"""Connections to the agent that an engine's threads share: taken, used, given back; after a failure none for a while."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvtier.client.channel import AgentUnavailable, Channel
from kvtier.client.memory import SharedMemory
from kvtier.page.space import PageSpace
from kvtier.wire.messages import Attach, Attached

_MAX_IDLE = 8


class Meeting(NamedTuple):
    """A channel, the number that its agent gave our space, and that agent's memory."""

    channel: Channel
    space: int
    memory: SharedMemory


class Meetings:
    """Meetings of one space with one agent; a restarted agent's new memory is mapped when it is first met."""

    def __init__(self, path: Path, space: PageSpace, connect_s: float, retry_s: float, clock_s: Callable[[], float]) -> None:
        self._path = path
        self._space = space
        self._connect_s = connect_s
        self._retry_s = retry_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._idle: list[Meeting] = []
        self._memories: dict[int, SharedMemory] = {}  # by epoch: the newest alone
        self._left_alone_until_s = 0.0

    def take(self, deadline_s: float) -> Meeting:
        """One for this thread alone. Raises `AgentUnavailable`, at once after a failure."""
        with self._lock:
            if self._clock_s() < self._left_alone_until_s:
                raise AgentUnavailable("the agent failed a moment ago")
            while self._idle:
                met = self._idle.pop()
                if not met.channel.gone:
                    return met
                met.channel.close()  # the agent has restarted: a new one may be there
        connect_s = min(self._connect_s, deadline_s)
        until_s = time.monotonic() + connect_s
        channel = Channel(self._path, connect_s)
        try:
            attached = channel.ask(Attach(self._space), until_s - time.monotonic())
            if not isinstance(attached, Attached):
                raise AgentUnavailable(f"{type(attached).__name__} is no answer to Attach")  # noqa: TRY301 - one way out
            return Meeting(channel, attached.space, self._memory(channel))
        except BaseException:
            channel.close()
            raise

    def give_back(self, met: Meeting) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(met)
                return
        met.channel.close()

    def failed(self, met: Meeting | None) -> None:
        """The agent did not do what it should: let it alone, and begin anew after that."""
        with self._lock:
            self._left_alone_until_s = self._clock_s() + self._retry_s
        self.gone(met)

    def gone(self, met: Meeting | None) -> None:
        """The life of the agent that was met is over: meet the next one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in [*idle, *([met] if met else [])]:
            each.channel.close()

    def close(self) -> None:
        self.gone(None)

    def _memory(self, channel: Channel) -> SharedMemory:
        greeting = channel.greeting
        fd = channel.take_memory_fd()
        with self._lock:
            known = self._memories.get(greeting.epoch)
            if known is not None:
                os.close(fd)
                return known
            try:
                memory = SharedMemory(fd, greeting.pool_bytes)
            except (OSError, ValueError, OverflowError) as error:  # no room for it, or no memory of that size
                raise AgentUnavailable(f"the agent's memory cannot be mapped: {error}") from error
            self._memories = {greeting.epoch: memory}
            return memory
