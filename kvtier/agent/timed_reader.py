"""Any reader of other nodes' pages, with what came and how long it took counted by node."""

from __future__ import annotations

from collections.abc import Sequence

from kvtier.agent.traffic import Traffic, from_node
from kvtier.transport.page_reader import PageReader, RemotePage
from kvtier.transport.peer_link import PeerLink


class TimedPageReader:
    """A `PageReader` around another."""

    def __init__(self, reader: PageReader, traffic: Traffic) -> None:
        self._reader = reader
        self._traffic = traffic

    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> list[bytes] | None:
        node = link.greeting.node if link.greeting is not None else ""
        with self._traffic.timing(from_node(node)) as came:
            checksums = await self._reader.read(link, lease, pages, targets, deadline_s)
            if checksums is not None:
                came(sum(page.length for page in pages))
        return checksums
