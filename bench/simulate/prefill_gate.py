"""What a gateway could do that holds turns back: only so many at each prefill engine, the others in order of their coming."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from costmodel.values import WorkerKey

Go = Callable[[], None]


class PrefillGate:
    """`limit` 0: everybody goes at once. A turn that is sent again elsewhere leaves its place first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside: dict[str, WorkerKey] = {}
        self._counts: defaultdict[WorkerKey, int] = defaultdict(int)
        self._waiting: defaultdict[WorkerKey, deque[tuple[str, Go]]] = defaultdict(deque)

    def enter(self, rid: str, worker: WorkerKey, go: Go) -> None:
        """`go` is called now, or when a place is free."""
        if not self._limit:
            go()
            return
        self.left(rid)
        self._waiting[worker].append((rid, go))
        self._admit(worker)

    def left(self, rid: str) -> None:
        """Its prefill is over. Unknown turns are ignored."""
        worker = self._inside.pop(rid, None)
        if worker is not None:
            self._counts[worker] -= 1
            self._admit(worker)

    def _admit(self, worker: WorkerKey) -> None:
        waiting = self._waiting[worker]
        while waiting and self._counts[worker] < self._limit:
            rid, go = waiting.popleft()
            self._inside[rid] = worker
            self._counts[worker] += 1
            go()
