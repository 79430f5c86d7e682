"""Where pages lie in the engine's own memory, as columns: a call has thousands, and objects cost as much as their copies."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence


class EnginePages:
    """Pages of equally many pieces: keys and values apart, or one a layer.

    `addresses` are those of the pieces, page by page; `piece_bytes` the lengths of one page's.
    """

    __slots__ = ("addresses", "page_bytes", "piece_bytes")

    def __init__(self, addresses: array[int], piece_bytes: Sequence[int]) -> None:
        """Raises ValueError for pieces that are no whole number of pages."""
        if not piece_bytes or len(addresses) % len(piece_bytes):
            raise ValueError(f"{len(addresses)} pieces are no whole number of pages of {len(piece_bytes)}")
        self.addresses = addresses
        self.piece_bytes = array("q", piece_bytes)
        self.page_bytes = sum(piece_bytes)

    @classmethod
    def striped(cls, parts: Iterable[tuple[int, int]], count: int) -> EnginePages:
        """`count` pages of one piece from each of `parts`, which are arrays of such pieces: (address, bytes of a piece)."""
        columns = [(address, size) for address, size in parts]
        if any(size <= 0 for _, size in columns):
            raise ValueError("a piece of a page has no bytes")
        addresses = array("q", bytes(8 * len(columns) * count))
        for number, (address, size) in enumerate(columns):
            addresses[number :: len(columns)] = array("q", range(address, address + size * count, size))
        return cls(addresses, [size for _, size in columns])

    def __len__(self) -> int:
        return len(self.addresses) // len(self.piece_bytes)

    def part(self, numbers: slice) -> EnginePages:
        """Neighbouring pages."""
        width = len(self.piece_bytes)
        return EnginePages(self.addresses[numbers.start * width : numbers.stop * width], self.piece_bytes)

    def chosen(self, numbers: Sequence[int]) -> EnginePages:
        """Pages by number, which ascend."""
        if len(numbers) == len(self):
            return self
        width = len(self.piece_bytes)
        columns = [self.addresses[number::width] for number in range(width)]
        picked = array("q", [column[number] for number in numbers for column in columns])
        return EnginePages(picked, self.piece_bytes)

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """(address, length) of one page's."""
        width = len(self.piece_bytes)
        return list(zip(self.addresses[number * width : (number + 1) * width], self.piece_bytes, strict=True))
