"""Jobs that have something left to start, by the link that they wait for and in their order: who is next there is known without
a look at the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from kvtier.prefetch.job import Job, Order
from kvtier.prefetch.view import Path

_NOTHING: frozenset[Path] = frozenset()


class Waiting:
    def __init__(self) -> None:
        self._lines: dict[Path, list[Order]] = {}
        self._paths: dict[int, frozenset[Path]] = {}  # by job

    def __contains__(self, path: Path) -> bool:
        return path in self._lines

    def first(self) -> Iterator[tuple[Path, Order]]:
        """Of each link the order of the job that is next there."""
        return ((path, line[0]) for path, line in self._lines.items())

    def update(self, job: Job) -> None:
        """`pending` of this job is another one now."""
        before, now = self._paths.get(job.id, _NOTHING), frozenset(copy.path for copy in job.pending)
        if before == now:
            return
        for path in before - now:
            self._leave(path, job.order)
        for path in now - before:
            insort(self._lines.setdefault(path, []), job.order)
        if now:
            self._paths[job.id] = now
        else:
            del self._paths[job.id]

    def _leave(self, path: Path, order: Order) -> None:
        line = self._lines[path]
        del line[bisect_left(line, order)]
        if not line:
            del self._lines[path]
