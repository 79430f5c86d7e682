"""A master as a server: listens, expires who is silent, and keeps its picture in a file for its next life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
from grpc import aio

from kvtier.control.grpc_port import server_at
from kvtier.umbp.master_state import MasterState, Saved
from kvtier.umbp.service import MasterService

log = logging.getLogger(__name__)

_TICK_S = 1.0
_SAVE_EVERY = 10  # ticks
_GRACE_S = 1.0


class UmbpMaster:
    """`start`, then `close`, both awaited. Without `path` a new life begins with nothing. No authentication, as in UMBP."""

    def __init__(self, state: MasterState, clock_ms: Callable[[], float], path: Path | None = None) -> None:
        self.state = state
        self.port = 0
        self.crashes = 0
        self._clock_ms = clock_ms
        self._path = path
        self._server: aio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises `AddressTaken`."""
        self._server, self.port = server_at("umbp", host, port)
        self._load()
        self._server.add_generic_rpc_handlers((MasterService(self.state, self._clock_ms).handlers,))
        await self._server.start()
        self._ticking = asyncio.create_task(self._tick_on(), name="umbp master")

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(_GRACE_S)
            self._save()  # one that never had the port has nothing to tell, and another may be using the file

    async def _tick_on(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_S)
            ticks += 1
            try:
                self.state.expire(self._clock_ms())
                if ticks % _SAVE_EVERY == 0:
                    self._save()
            except Exception:
                self.crashes += 1
                log.exception("the master's tick failed")

    def _load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            saved = msgspec.msgpack.decode(self._path.read_bytes(), type=Saved)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("%s holds no master's picture, beginning with nothing: %s", self._path, error)
            return
        self.state.restore(saved, self._clock_ms())

    def _save(self) -> None:
        if self._path is None:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.write_bytes(msgspec.msgpack.encode(self.state.save()))
            fresh.replace(self._path)
        except OSError as error:
            log.warning("the master's picture is not saved: %s", error)
