"""Where the halves of disaggregated requests meet on a prefill worker: a room each, known by the number both were sent.

The prefill half announces its requests, the decode half asks and waits; whoever comes first waits for the other. As on the real
engine, a decode half hears nothing of an aborted prefill half and waits on, while a prefill half learns when its KV cannot be
delivered any more. Bounded: the oldest rooms are given up when too many are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from engine_adapters.emulator.model.request import Cached

MAX_ROOMS = 65_536


class RoomResult(msgspec.Struct, frozen=True):
    """What the decode half is told once all KV has arrived; `error` when it never will."""

    cached: Cached = Cached()
    error: str | None = None


class Rooms:
    """`pair(rid, resident_tokens)` is called once both halves of a request are here."""

    def __init__(self, pair: Callable[[str, int], None]) -> None:
        self._pair = pair
        self._rooms: dict[int, _Room] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def announce(self, number: int, rid: str) -> None:
        """The prefill half of `rid` is in this worker's queue."""
        room = self._open(number)
        room.rids.append(rid)
        if room.resident_tokens is not None:
            self._pair(rid, room.resident_tokens)

    async def wait(self, number: int, resident_tokens: int) -> RoomResult:
        """The decode half has room for the KV; returns when it is there. Cancelling means that the decode half has left."""
        room = self._open(number)
        room.resident_tokens = resident_tokens
        for rid in room.rids:
            self._pair(rid, resident_tokens)
        try:
            return await asyncio.shield(room.result)
        finally:
            room.abandoned = not room.result.done()
            self._sweep(number, room)

    def deliver(self, number: int, cached: Cached) -> bool:
        """The prefill half has computed and sent everything; False when nobody is there to take it."""
        room = self._rooms.get(number)
        if room is None or room.abandoned:
            return False
        if not room.result.done():
            room.result.set_result(RoomResult(cached))
        return True

    def leave(self, number: int, rid: str) -> None:
        """The prefill half of `rid` has ended one way or the other."""
        room = self._rooms.get(number)
        if room is None:
            return
        if rid in room.rids:
            room.rids.remove(rid)
        self._sweep(number, room)

    def _sweep(self, number: int, room: _Room) -> None:
        """Forget a room in which nobody is left."""
        waited_for = room.resident_tokens is not None and not room.abandoned and not room.result.done()
        if not room.rids and not waited_for and self._rooms.get(number) is room:
            del self._rooms[number]

    def _open(self, number: int) -> _Room:
        room = self._rooms.get(number)
        if room is None:
            if len(self._rooms) >= MAX_ROOMS:
                oldest = self._rooms.pop(next(iter(self._rooms)))
                if not oldest.result.done():
                    oldest.result.set_result(RoomResult(error="too many rooms are open"))
            room = self._rooms[number] = _Room()
        return room


class _Room:
    __slots__ = ("abandoned", "resident_tokens", "result", "rids")

    def __init__(self) -> None:
        self.rids: list[str] = []
        self.resident_tokens: int | None = None  # set once the decode half has asked
        self.abandoned = False  # the decode half has asked and left
        self.result: asyncio.Future[RoomResult] = asyncio.get_running_loop().create_future()
