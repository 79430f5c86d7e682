"""Copies with libc's memmove, one after the other on the caller's thread: what there is without the native package."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtier.copy.address import Extent, extent_of
from kvtier.copy.base import Move, check_distinct, check_moves, check_pages

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PortableCopies:
    native = False

    def gather(self, packed: Buffer, pool: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        with extent_of(packed, writable=True) as to, extent_of(pool, writable=False) as from_:
            _check(from_, to, pages, page_bytes)
            for index, page in enumerate(pages):
                ctypes.memmove(to.address + index * page_bytes, from_.address + page * page_bytes, page_bytes)

    def scatter(self, pool: Buffer, packed: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        with extent_of(pool, writable=True) as to, extent_of(packed, writable=False) as from_:
            _check(to, from_, pages, page_bytes)
            check_distinct(pages)
            for index, page in enumerate(pages):
                ctypes.memmove(to.address + page * page_bytes, from_.address + index * page_bytes, page_bytes)

    def move(self, moves: Sequence[Move]) -> None:
        check_moves(moves)
        for move in moves:
            ctypes.memmove(move.to, move.from_, move.length)


def _check(pool: Extent, packed: Extent, pages: Sequence[int], page_bytes: int) -> None:
    check_pages(pool.length, packed.length, pages, page_bytes)
    if pool.overlaps(packed):
        raise ValueError("the packed pages overlap the pool that they are copied from or to")
