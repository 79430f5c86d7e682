"""Tells engines to drop a request by its id, after a pair half-failed or its client left. Bounded, owned, never in the way.

An abort is a courtesy with a deadline: the leg's connection is gone already, this frees what the other engine waits for.
"""

from __future__ import annotations

import asyncio

import httpx
import structlog

from engine_adapters.base import AdapterError
from router.fleet.worker import Worker

_log = structlog.get_logger(__name__)
_MAX_PENDING = 1024


class Aborter:
    """`abort` never waits and never raises. Beyond `_MAX_PENDING` calls in flight it drops them and counts."""

    def __init__(self, http: httpx.AsyncClient, timeout_s: float) -> None:
        self._http = http
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed = 0
        self.dropped = 0

    def abort(self, worker: Worker, rid: str) -> None:
        if len(self._tasks) >= _MAX_PENDING:
            self.dropped += 1
            return
        task = asyncio.create_task(self._abort(worker, rid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let pending aborts run out, each within its own deadline."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _abort(self, worker: Worker, rid: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await worker.adapter.abort(self._http, worker.endpoint, rid)
        except (AdapterError, TimeoutError) as error:
            self.failed += 1
            _log.debug("abort_failed", worker=worker.worker_id, error=str(error))
