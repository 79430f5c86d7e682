"""The engine model in real time: it brings the clock and timers, and hands what happens to whoever waits for it.

No tasks: one timer, callbacks into per-call queues. Pages' events go to one listener as they happen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.page_events import PageEvent
from engine_adapters.emulator.model.request import Cached, EngineRequest, Finished, Outcome


class Failure(Exception):
    """A request ended without a reply. `status` is what a non-streaming client gets; `refused`: it never reached the engine."""

    def __init__(self, status: int, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.refused = refused


class OutcomeQueue:
    """What the engine says about the requests of one call. At most their output tokens are ever queued."""

    def __init__(self) -> None:
        self._items: deque[Outcome | Failure] = deque()
        self._arrived = asyncio.Event()

    def put(self, item: Outcome | Failure) -> None:
        self._items.append(item)
        self._arrived.set()

    async def get(self) -> Outcome:
        """The next outcome; raises the Failure that ended a request."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items.popleft()
        if isinstance(item, Failure):
            raise item
        return item


class EngineDriver:
    """One engine. `on_pages` gets every batch of page events in order."""

    def __init__(
        self, model: EngineModel, now_ms: Callable[[], float], on_pages: Callable[[Sequence[PageEvent]], None]
    ) -> None:
        self.model = model
        self._now_ms = now_ms
        self._on_pages = on_pages
        self._queues: dict[str, OutcomeQueue] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rids(self) -> tuple[str, ...]:
        return tuple(self._queues)

    def submit(self, request: EngineRequest, queue: OutcomeQueue) -> None:
        """Start `request`; its outcomes go to `queue`. Raises ValueError as the model does."""
        self.model.submit(request, self._now_ms())
        self._queues[request.rid] = queue
        self.pump()

    def abort(self, rid: str) -> bool:
        known = self.model.abort(rid, self._now_ms())
        self.pump()
        return known

    def fail(self, rid: str, failure: Failure) -> None:
        """Abort `rid`, but tell its waiter why."""
        queue = self._queues.pop(rid, None)
        self.model.abort(rid, self._now_ms())
        if queue is not None:
            queue.put(failure)
        self.pump()

    def pair(self, rid: str, resident_tokens: int) -> None:
        self.model.pair(rid, self._now_ms(), resident_tokens)
        self.pump()

    def receive(self, rid: str, cached: Cached) -> None:
        self.model.receive(rid, self._now_ms(), cached)
        self.pump()

    def resume(self, action: Callable[[float], None]) -> None:
        """Let something that ended elsewhere happen to the model now."""
        action(self._now_ms())
        self.pump()

    def flush(self) -> bool:
        done = self.model.flush()
        self.pump()
        return done

    def pump(self) -> None:
        """Let the model do everything due, deliver it and set the timer for what comes next."""
        now_ms = self._now_ms()
        for outcome in self.model.advance(now_ms):
            queue = self._queues.get(outcome.rid)
            if queue is not None:
                queue.put(outcome)
            if isinstance(outcome, Finished):
                self._queues.pop(outcome.rid, None)
        pages = self.model.take_page_events()
        if pages:
            self._on_pages(pages)
        self._schedule(now_ms)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, now_ms: float) -> None:
        self.close()
        due_ms = self.model.next_event_ms()
        if due_ms is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due_ms - now_ms, 0.0) / 1000.0, self.pump)
