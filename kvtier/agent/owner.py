"""One connection as the agent knows it: a number that leases and writes belong to, and the spaces it has named."""

from __future__ import annotations

import msgspec

from kvtier.page.space import PageSpace
from kvtier.wire.messages import MAX_SPACES


class TooManySpaces(Exception):
    """A connection names more spaces than any client has."""


class Named(msgspec.Struct, frozen=True):
    space: PageSpace
    digest: bytes


class Owner:
    def __init__(self, number: int) -> None:
        self.number = number
        self._named: list[Named] = []

    def name(self, space: PageSpace, digest: bytes) -> int:
        """The number of a space on this connection. Raises `TooManySpaces`."""
        named = Named(space, digest)
        if named in self._named:
            return self._named.index(named)
        if len(self._named) >= MAX_SPACES:
            raise TooManySpaces(f"a connection may name {MAX_SPACES} page spaces")
        self._named.append(named)
        return len(self._named) - 1

    def named(self, number: int) -> Named:
        """Raises KeyError for a number that was not given."""
        if not 0 <= number < len(self._named):
            raise KeyError(f"space {number} was not attached on this connection")
        return self._named[number]
