"""Keeps what was learned of workers across a restart, in one JSON file. Without a path it does nothing.

A file that cannot be read is told in the log and left aside: learning starts anew, turns go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import msgspec
import structlog

from costmodel.calibration import Calibration
from router.fleet.fleet import Fleet

_log = structlog.get_logger(__name__)


class PoolCalibration(msgspec.Struct, frozen=True):
    """Workers by id; one whose URL has changed is another worker."""

    pool: Calibration
    workers: dict[str, Calibration] = {}
    urls: dict[str, str] = {}


class CalibrationStore:
    """`load` before the first turn; `start` saves every `every_s`, `close` once more."""

    def __init__(self, path: str, every_s: float, fleet: Fleet) -> None:
        self._path = Path(path) if path else None
        self._every_s = every_s
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    def load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=dict[str, PoolCalibration])
        except (OSError, RecursionError, msgspec.DecodeError, msgspec.ValidationError) as error:
            _log.warning("calibration_unreadable", path=str(self._path), error=str(error))
            return
        for name, pool in self._fleet.pools.items():
            if (kept := found.get(name)) is None:
                continue
            pool.rates.restore(kept.pool)
            for worker_id, calibration in kept.workers.items():
                worker = pool.workers.get(worker_id)
                if worker is not None and worker.config.url == kept.urls.get(worker_id):
                    worker.restore(calibration)

    def save(self) -> None:
        """Whole or not at all: a reader never sees half a file."""
        if self._path is None:
            return
        told = {
            name: PoolCalibration(
                pool.rates.calibration(),
                {worker.worker_id: worker.calibration() for worker in pool.workers.values()},
                {worker.worker_id: worker.config.url for worker in pool.workers.values()},
            )
            for name, pool in self._fleet.pools.items()
        }
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(told)))
            os.replace(beside, self._path)
        except OSError as error:
            _log.warning("calibration_not_kept", path=str(self._path), error=str(error))

    def start(self) -> None:
        if self._path is not None:
            self._task = asyncio.create_task(self._keep(), name="calibration")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.save()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self.save()
