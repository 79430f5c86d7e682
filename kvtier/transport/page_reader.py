"""How page bytes cross between nodes, whatever carries them.

The agent leases pages at their node and claims bytes for them here; a reader then moves the bytes. Over TCP the peer sends them
on the link itself. A one-sided engine (Mooncake, NIXL, MoRI) registers both memory files and reads `RemotePage.offset` in the
peer's; it is another `PageReader`, and nothing else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from kvtier.transport.peer_link import PeerLink

_CALLS_AHEAD = 2  # of one read, under way at once


class RemotePage(msgspec.Struct, frozen=True):
    """One page under a lease: the `index`-th of it, at `offset` of the peer's memory file."""

    index: int
    offset: int
    length: int


class PageReader(Protocol):
    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> list[bytes] | None:
        """Fill `targets`, one a page, and say each one's checksum; None where the lease has ended.

        Raises `PeerUnavailable` and `PeerRefused`. Then and after None the targets hold anything; in any case nobody writes to
        them any more.
        """
        ...


class TcpPageReader:
    """Pages as payload of the link, several neighbouring ones in a call; the next call is there before the last is answered."""

    def __init__(self, call_bytes: int = 16 << 20) -> None:
        self._call_bytes = call_bytes

    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> list[bytes] | None:
        turns = asyncio.Semaphore(_CALLS_AHEAD)

        async def call(start: int, end: int) -> list[bytes] | None:
            async with turns:
                return await link.read(lease, pages[start].index, targets[start:end], deadline_s)

        try:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(call(start, end)) for start, end in self._calls(pages)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        checksums: list[bytes] = []
        for each in calls:
            if (came := each.result()) is None:
                return None
            checksums += came
        return checksums

    def _calls(self, pages: Sequence[RemotePage]) -> Iterator[tuple[int, int]]:
        """First page and end of each."""
        start = size = 0
        for at, page in enumerate(pages):
            size += page.length
            if at > start and (page.index != pages[at - 1].index + 1 or size > self._call_bytes):
                yield start, at
                start, size = at, page.length
        if pages:
            yield start, len(pages)
