"""Replays sessions in real time: the simulator's own clients, driven by the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from bench.simulate.agenda import Agenda
from bench.simulate.clients import Ask, Clients
from bench.simulate.workload import SessionPlan

T = TypeVar("T")
Send = Callable[[Ask, float], Awaitable[T]]  # a call and when it is sent, in ms from the replay's start


class WallReplay(Generic[T]):
    """One closed-loop replay. Use once."""

    def __init__(self, send: Send[T]) -> None:
        self._send = send
        self._agenda = Agenda()
        self._clients = Clients(self._agenda, self._begin, until_ms=float("inf"))
        self._calls: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._origin_s = 0.0
        self._results: list[T] = []

    async def run(self, plans: Iterator[SessionPlan], concurrency: int, ramp_ms: float) -> list[T]:
        """What became of the calls, in the order in which they ended. Raises what `send` raises; no call is left running."""
        self._clients.closed_loop(plans, concurrency, ramp_ms)
        self._origin_s = time.monotonic()
        try:
            while self._agenda.next_ms is not None or self._calls:
                while (due_ms := self._agenda.next_ms) is not None and due_ms <= self._now_ms():
                    self._agenda.step()
                await self._rest(due_ms)
        finally:
            for task in self._calls:
                task.cancel()
        return self._results

    def _now_ms(self) -> float:
        return 1000 * (time.monotonic() - self._origin_s)

    async def _rest(self, due_ms: float | None) -> None:
        """Until the next thing is due or a call has ended."""
        self._ended.clear()
        ended = [task for task in self._calls if task.done()]
        for task in ended:
            self._calls.discard(task)
            task.result()
        if ended or (due_ms is None and not self._calls):
            return
        try:
            await asyncio.wait_for(self._ended.wait(), None if due_ms is None else max(0.0, due_ms - self._now_ms()) / 1000)
        except TimeoutError:
            return  # the next thing is due

    def _begin(self, ask: Ask) -> None:
        task = asyncio.create_task(self._call(ask))
        self._calls.add(task)
        task.add_done_callback(lambda _: self._ended.set())

    async def _call(self, ask: Ask) -> None:
        self._results.append(await self._send(ask, self._now_ms()))
        self._agenda.at(max(self._now_ms(), self._agenda.now_ms), self._clients.done, ask)
