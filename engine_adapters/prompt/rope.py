"""A growing table that many owners may have beginnings of in common: rows in a few shared chunks.

A rope is a value. Adding rows makes a new rope over the same chunks; small chunks at the end are merged as rows are added, so
that their number stays logarithmic, unless another owner has them too. Bytes are counted by chunk, each once however many ropes
hold it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

CHUNK_BYTES = 400
"""What a chunk costs beside its rows, measured: the object, its array's header, its places in tuples."""


class Chunk:
    """`shared`: a second rope was given it; from then on it is never merged away. It is only ever set."""

    __slots__ = ("rows", "shared")

    def __init__(self, rows: array[int]) -> None:
        self.rows = rows
        self.shared = False

    @property
    def cost_bytes(self) -> int:
        return CHUNK_BYTES + len(self.rows) * self.rows.itemsize


class Rope:
    """Rows of `width` numbers of one array typecode. Immutable."""

    __slots__ = ("_chunks", "_ends", "typecode", "width")

    def __init__(self, typecode: str, width: int = 1, chunks: tuple[Chunk, ...] = (), ends: tuple[int, ...] = ()) -> None:
        """`ends[i]`: rows up to the end of what this rope uses of chunk i."""
        self.typecode = typecode
        self.width = width
        self._chunks = chunks
        self._ends = ends

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self._chunks

    def appended(self, rows: array[int]) -> Rope:
        """With `rows` behind the others."""
        if not rows:
            return self
        chunks, ends = list(self._chunks), list(self._ends)
        total = len(self) + len(rows) // self.width
        while chunks and not chunks[-1].shared and self._used(chunks, ends) <= 2 * len(rows):
            used = self._used(chunks, ends)
            rows = chunks.pop().rows[:used] + rows
            ends.pop()
        return Rope(self.typecode, self.width, (*chunks, Chunk(rows)), (*ends, total))

    def prefix(self, count: int) -> Rope:
        """The first `count` rows."""
        if count >= len(self):
            return self
        place = bisect_right(self._ends, count - 1) if count else 0
        if not count:
            return Rope(self.typecode, self.width)
        return Rope(self.typecode, self.width, self._chunks[: place + 1], (*self._ends[:place], count))

    def split(self, count: int) -> Rope:
        """The same rows, with a chunk's end after the first `count` of them, so that a rope over those shares nothing else."""
        if count <= 0 or count >= len(self) or count in self._ends:
            return self
        place = bisect_right(self._ends, count)
        start = self._ends[place - 1] if place else 0
        rows = self._chunks[place].rows
        middle, end = (count - start) * self.width, (self._ends[place] - start) * self.width
        parts = (Chunk(rows[:middle]), Chunk(rows[middle:end]))
        chunks = (*self._chunks[:place], *parts, *self._chunks[place + 1 :])
        return Rope(self.typecode, self.width, chunks, (*self._ends[:place], count, *self._ends[place:]))

    def parted_from(self, origin: Rope) -> tuple[Rope, Rope]:
        """This rope and the one that it was made from, with the chunks that both use marked as shared and cut where they part,
        so that neither keeps alive rows of the other."""
        pairs = zip(self._chunks, origin._chunks, strict=False)
        alike = next((place for place, (mine, theirs) in enumerate(pairs) if mine is not theirs), None)
        alike = min(len(self._chunks), len(origin._chunks)) if alike is None else alike
        mine, theirs = self, origin
        if alike and self._ends[alike - 1] != origin._ends[alike - 1]:
            end = min(self._ends[alike - 1], origin._ends[alike - 1])
            theirs = origin.split(end)
            longer = self.split(end)
            chunks = (*theirs._chunks[:alike], *longer._chunks[alike:])
            mine = Rope(self.typecode, self.width, chunks, longer._ends)
        for chunk in theirs._chunks[:alike]:
            chunk.shared = True
        return mine, theirs

    def row(self, index: int) -> array[int]:
        """Row `index`, from 0 on. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        start = (index - (self._ends[place - 1] if place else 0)) * self.width
        return self._chunks[place].rows[start : start + self.width]

    def number(self, index: int, column: int = 0) -> int:
        """One number of row `index`."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        return self._chunks[place].rows[(index - (self._ends[place - 1] if place else 0)) * self.width + column]

    def slice(self, start: int, stop: int) -> array[int]:
        """Rows `start` to `stop`, one after the other."""
        found = array(self.typecode)
        before = 0
        for chunk, end in zip(self._chunks, self._ends, strict=True):
            if end > start and before < stop:
                found += chunk.rows[max(start - before, 0) * self.width : (min(stop, end) - before) * self.width]
            before = end
        return found

    def count_to(self, value: int, column: int = 0) -> int:
        """How many rows have at most `value` in a column that ascends."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.number(middle, column) <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def last_with(self, value: int, column: int, below: int) -> int:
        """The last row with an index below `below` that has `value` in a column; -1 = none."""
        for place in range(len(self._chunks) - 1, -1, -1):
            start = self._ends[place - 1] if place else 0
            stop = min(self._ends[place], below) - start
            if stop > 0:
                numbers = self._chunks[place].rows[column : stop * self.width : self.width]
                numbers.reverse()
                if value in numbers:
                    return start + stop - 1 - numbers.index(value)
        return -1

    def same_rows(self, rows: array[int]) -> int:
        """How many rows at the beginning equal those of `rows`."""
        before = 0
        for chunk, end in zip(self._chunks, self._ends, strict=True):
            start, stop = before * self.width, min(end * self.width, len(rows))
            if stop <= start:
                break
            mine, theirs = chunk.rows[: stop - start], rows[start:stop]
            if mine != theirs:
                return before + _first_difference(mine, theirs) // self.width
            before = stop // self.width
        return before

    def __iter__(self) -> Iterator[int]:
        return iter(self.slice(0, len(self)))

    def _used(self, chunks: list[Chunk], ends: list[int]) -> int:
        """Numbers that this rope uses of the last of `chunks`."""
        return (ends[-1] - (ends[-2] if len(ends) > 1 else 0)) * self.width


def _first_difference(left: array[int], right: array[int]) -> int:
    """Where two arrays of one length that are not equal differ first; by halving, as comparing is cheap."""
    low, high = 0, len(left)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
