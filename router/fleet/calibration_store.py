"""Keeps what was learned of workers across a restart, in one JSON file. Without a path it does nothing.

A file that is not ours is told in the log and set aside under another name before one of ours takes its place: learning starts
anew, turns go on. Gateways that share a file overwrite what each other keeps, whole files only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

import msgspec
import structlog

from costmodel.calibration import Calibration
from router.fleet.fleet import Fleet

_log = structlog.get_logger(__name__)
_LEAST, _MOST = 1e-18, 1e18  # what lies beyond was not learned, and overflows where it is squared or inverted


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
        self._foreign = False  # what lies there was not written here
        self._told = False  # that it cannot be written

    def load(self) -> None:
        if self._path is None:
            return
        try:
            if not _is_there(self._path):
                return
            found = _decoded(self._path.read_bytes())
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._foreign = True
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
        try:
            self._write(self._path, msgspec.json.format(msgspec.json.encode(self._learned())))
        except (OSError, ValueError) as error:
            if not self._told:
                _log.warning("calibration_not_kept", path=str(self._path), error=str(error))
            self._told = True
        else:
            self._told = False

    def _learned(self) -> dict[str, PoolCalibration]:
        return {
            name: PoolCalibration(
                pool.rates.calibration(),
                {worker.worker_id: worker.calibration() for worker in pool.workers.values()},
                {worker.worker_id: worker.config.url for worker in pool.workers.values()},
            )
            for name, pool in self._fleet.pools.items()
        }

    def _write(self, path: Path, text: bytes) -> None:
        beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")  # another gateway may be writing its own
        try:
            beside.write_bytes(text)
            if _is_there(path) and self._foreign:
                os.replace(path, path.with_name(f"{path.name}.unreadable"))
            self._foreign = False
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

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


def _is_there(path: Path) -> bool:
    """Raises `OSError` for what is no file: a pipe has no end, and root would put a file in a device's place."""
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    return path.exists()


def _decoded(text: bytes) -> dict[str, PoolCalibration]:
    """Raises `ValueError` and msgspec's errors for what no gateway has written."""
    tree = msgspec.json.decode(text)
    _require_plausible(tree)
    return msgspec.convert(tree, dict[str, PoolCalibration])


def _require_plausible(tree: object) -> None:
    if isinstance(tree, int | float) and tree and not _LEAST <= tree <= _MOST:
        raise ValueError(f"{tree} was not learned by a gateway")
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        _require_plausible(part)
