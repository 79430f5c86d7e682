"""What copying of pages looks like to the store, and what every way of doing it refuses before the first byte moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Move(NamedTuple):
    """Bytes from one address to another. The caller answers for both."""

    to: int
    from_: int
    length: int


class PageCopies(Protocol):
    """Blocking, without the interpreter's lock while bytes move, for several threads at once.

    Buffers are C-contiguous, of any alignment. IndexError for a page that is not in `pool`; ValueError where `packed` holds too
    few pages, where a page or byte would be written twice, and where what is written overlaps what is read.
    """

    @property
    def native(self) -> bool: ...

    def gather(self, packed: Buffer, pool: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        """packed[i] = pool[pages[i]]"""
        ...

    def scatter(self, pool: Buffer, packed: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        """pool[pages[i]] = packed[i]"""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Each on its own, in any order."""
        ...


def check_pages(pool_bytes: int, packed_bytes: int, pages: Sequence[int], page_bytes: int) -> None:
    """Raises ValueError and IndexError."""
    if page_bytes < 1:
        raise ValueError("page_bytes must be above 0")
    if packed_bytes // page_bytes < len(pages):
        raise ValueError(f"{len(pages)} pages of {page_bytes} bytes do not fit {packed_bytes} bytes")
    held = pool_bytes // page_bytes
    for page in pages:
        if not 0 <= page < held:
            raise IndexError(f"page {page} is not one of {held}")


def check_distinct(pages: Sequence[int]) -> None:
    """Raises ValueError."""
    if len(set(pages)) < len(pages):
        twice = next(page for page in pages if pages.count(page) > 1)
        raise ValueError(f"page {twice} is to be written twice")


def check_moves(moves: Sequence[Move]) -> None:
    """Raises ValueError. Sorted by what is written, only neighbours can overlap."""
    if any(move.length < 0 for move in moves):
        raise ValueError("a length is below 0")
    written = sorted(move for move in moves if move.length)
    for before, after in pairwise(written):
        if after.to < before.to + before.length:
            raise ValueError("two moves write the same bytes")
    starts = [move.to for move in written]
    for move in written:
        index = bisect_left(starts, move.from_ + move.length) - 1
        if index >= 0 and move.from_ < written[index].to + written[index].length:
            raise ValueError("a move writes bytes that another one, or itself, reads")
