"""Pages over TCP are asked for in calls of neighbours, the next one while the last is under way, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvtier.transport.page_reader import RemotePage, TcpPageReader
from kvtier.transport.peer_link import PeerUnavailable


class Link:
    """Answers a call when it is let to, with each target's length as its checksum."""

    def __init__(self, *, ended_at: int | None = None, broken_at: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.under_way = 0
        self.most = 0
        self.gate = asyncio.Event()
        self._ended_at = ended_at
        self._broken_at = broken_at

    async def read(self, lease: int, first: int, targets: Sequence[memoryview], deadline_s: float) -> list[bytes] | None:
        self.asked.append((first, len(targets)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if first == self._broken_at:
                raise PeerUnavailable("gone")
            await self.gate.wait()
            return None if first == self._ended_at else [str(len(target)).encode() for target in targets]
        finally:
            self.under_way -= 1


def pages(*lengths: int, gap_before: int | None = None) -> list[RemotePage]:
    return [
        RemotePage(index + (gap_before is not None and index >= gap_before), 0, length) for index, length in enumerate(lengths)
    ]


async def read(link: Link, wanted: list[RemotePage], call_bytes: int = 100) -> list[bytes] | None:
    targets = [memoryview(bytearray(page.length)) for page in wanted]
    lent: Any = link
    return await TcpPageReader(call_bytes).read(lent, 7, wanted, targets, 5.0)


@pytest.mark.parametrize(
    ("wanted", "calls"),
    [
        (pages(), []),
        (pages(40, 40, 40), [(0, 2), (2, 1)]),
        (pages(100, 1, 99, 1), [(0, 1), (1, 2), (3, 1)]),
        (pages(300, 10), [(0, 1), (1, 1)]),
        (pages(10, 10, 10, gap_before=1), [(0, 1), (2, 2)]),
    ],
)
async def test_a_call_holds_neighbours_up_to_its_bytes(wanted: list[RemotePage], calls: list[tuple[int, int]]) -> None:
    link = Link()
    link.gate.set()
    assert await read(link, wanted) == [str(page.length).encode() for page in wanted]
    assert link.asked == calls


async def test_the_next_call_is_there_before_the_last_is_answered() -> None:
    link = Link()
    reading = asyncio.create_task(read(link, pages(100, 100, 100, 100)))
    async with asyncio.timeout(10):
        while link.under_way < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    link.gate.set()
    assert await reading == [b"100"] * 4
    assert link.most == 2


async def test_a_lease_that_has_ended_gives_nothing() -> None:
    link = Link(ended_at=1)
    link.gate.set()
    assert await read(link, pages(100, 100, 100)) is None


async def test_a_call_that_fails_ends_the_others_first() -> None:
    link = Link(broken_at=1)
    with pytest.raises(PeerUnavailable, match="gone"):
        await read(link, pages(100, 100, 100))
    assert link.under_way == 0
    assert link.asked[:2] == [(0, 1), (1, 1)]


async def test_a_reader_that_is_called_off_ends_its_calls() -> None:
    link = Link()
    reading = asyncio.create_task(read(link, pages(100, 100, 100)))
    async with asyncio.timeout(10):
        while link.under_way < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert link.under_way == 0
