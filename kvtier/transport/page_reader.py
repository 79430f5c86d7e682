"""How page bytes cross between nodes, whatever carries them.

The agent leases pages at their node and claims bytes for them here; a reader then moves the bytes. Over TCP the peer sends them
on the link itself. A one-sided engine (Mooncake, NIXL, MoRI) registers both memory files and reads `RemotePage.offset` in the
peer's; it is another `PageReader`, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvtier.transport.peer_link import PeerLink


class RemotePage(msgspec.Struct, frozen=True):
    """One page under a lease: the `index`-th of it, at `offset` of the peer's memory file."""

    index: int
    offset: int
    length: int


class PageReader(Protocol):
    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> bool:
        """Fill `targets`, one a page. False where the lease has ended; raises `PeerUnavailable` and `PeerRefused`.

        Except after True the targets hold anything; in any case nobody writes to them any more.
        """
        ...


class TcpPageReader:
    """Pages as payload of the link, several neighbouring ones in a call."""

    def __init__(self, call_bytes: int = 8 << 20) -> None:
        self._call_bytes = call_bytes

    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> bool:
        start = 0
        while start < len(pages):
            end = self._end_of_call(pages, start)
            if not await link.read(lease, pages[start].index, targets[start:end], deadline_s):
                return False
            start = end
        return True

    def _end_of_call(self, pages: Sequence[RemotePage], start: int) -> int:
        size = pages[start].length
        end = start + 1
        while (
            end < len(pages) and pages[end].index == pages[end - 1].index + 1 and size + pages[end].length <= self._call_bytes
        ):
            size += pages[end].length
            end += 1
        return end
