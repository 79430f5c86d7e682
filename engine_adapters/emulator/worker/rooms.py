"""Where the halves of disaggregated requests meet on a prefill worker: a room each, known by the number both were sent.

The prefill half announces its requests, the decode half asks and waits; whoever comes first waits for the other. Bounded: the
oldest rooms are given up when too many are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from engine_adapters.emulator.model.request import Cached

MAX_ROOMS = 65_536


class RoomResult(msgspec.Struct, frozen=True):
    """What the decode half is told. `error` is None when all KV has arrived."""

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
        """The decode half has room for the KV; returns when it is there or will never be."""
        room = self._open(number)
        room.resident_tokens = resident_tokens
        for rid in room.rids:
            self._pair(rid, resident_tokens)
        try:
            return await asyncio.shield(room.result)
        finally:
            if room.result.done() and self._rooms.get(number) is room:
                del self._rooms[number]

    def settle(self, number: int, result: RoomResult) -> None:
        """The prefill half has ended."""
        room = self._rooms.get(number)
        if room is None:
            return
        if not room.result.done():
            room.result.set_result(result)
        if room.resident_tokens is None and result.error is None:
            del self._rooms[number]  # nobody asked and nobody needs to

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
    __slots__ = ("resident_tokens", "result", "rids")

    def __init__(self) -> None:
        self.rids: list[str] = []
        self.resident_tokens: int | None = None  # set once the decode half has asked
        self.result: asyncio.Future[RoomResult] = asyncio.get_running_loop().create_future()
