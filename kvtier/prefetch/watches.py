"""The threads whose return is awaited: where each last ran, since when it idles, and after what. Bounded, oldest out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.destination import Forecast
from kvtier.prefetch.events import Trigger

RESUMED_TOOL = "@resumed"  # gaps from a session's first sign of life are learned like those of a tool


class Watch(msgspec.Struct):
    """Mutable. `idle_since_ms` None: a turn of it is running."""

    thread: str
    worker: WorkerKey
    client: str = ""
    tool: str = ""
    idle_since_ms: float | None = None
    trigger: Trigger = Trigger.TURN_END
    seen_changes: int | None = None  # `View.changes` when nothing was to be moved; None = not looked at yet
    spent: bool = False  # what was done for this gap came to nothing: not again
    forecast: Forecast | None = None  # where its next turn would go, as it was last weighed
    forecast_ms: float = 0.0


class Watches:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._watches: OrderedDict[str, Watch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._watches)

    def __reversed__(self) -> Iterator[Watch]:
        """Those last heard of first."""
        return reversed(self._watches.values())

    def get(self, thread: str) -> Watch | None:
        return self._watches.get(thread)

    def touch(self, thread: str, worker: WorkerKey) -> tuple[Watch, list[str]]:
        """The thread's watch, on `worker` from now on; and the threads that had to be forgotten for it."""
        watch = self._watches.pop(thread, None) or Watch(thread, worker)
        watch.worker = worker
        self._watches[thread] = watch
        forgotten = []
        while len(self._watches) > self._limit:
            forgotten.append(self._watches.popitem(last=False)[0])
        return watch, forgotten

    def drop(self, thread: str) -> Watch | None:
        return self._watches.pop(thread, None)
