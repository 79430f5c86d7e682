"""A connection on which calls are given up and nothing is heard is ended; one that answers anything is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from kvtier.page.status import Status
from kvtier.transport.peer_link import LinkCounters, PeerLink, PeerUnavailable
from kvtier.wire.frames import HEADER_BYTES, pack_frame
from kvtier.wire.messages import AskStats, Done, PagesSent, Release, decode_request, encode
from kvtier.wire.stream import FrameStream, StreamClosed


class Far:
    """A link, and the other end of its connection."""

    def __init__(self, link: PeerLink, running: asyncio.Task[None], stream: FrameStream, sock: socket.socket) -> None:
        self.link = link
        self.running = running
        self.stream = stream
        self.sock = sock

    async def give_up(self, *, cancelled: bool = False) -> None:
        """A call that nobody answers."""
        if not cancelled:
            with pytest.raises(PeerUnavailable):
                await self.link.call(AskStats(), 0.01)
            return
        asking = asyncio.ensure_future(self.link.call(AskStats(), 60))
        await self.stream.receive()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@asynccontextmanager
async def far(counters: LinkCounters, mute_s: float = 0.0) -> AsyncIterator[Far]:
    near_sock, far_sock = socket.socketpair()
    link = PeerLink(FrameStream(near_sock, 60), counters, 8, mute_s)
    stream = FrameStream(far_sock, 60)
    running = asyncio.create_task(link.run())
    try:
        yield Far(link, running, stream, far_sock)
    finally:
        link.abort()
        async with asyncio.timeout(20):
            await running
        stream.close()


async def answer(there: Far, forget: type) -> None:
    """Everything but calls of one kind."""
    with suppress(StreamClosed):
        while True:
            header, body = await there.stream.receive()
            if not isinstance(decode_request(body), forget):
                await there.stream.send(header.call, encode(Done()))


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("left", [b"", pack_frame(1, bytes(4 << 20))[: HEADER_BYTES + 50]], ids=["silent", "lost its place"])
async def test_a_link_that_answers_nothing_ends(left: bytes, cancelled: bool) -> None:
    counters = LinkCounters()
    async with far(counters) as there:
        there.sock.send(left)
        await there.give_up(cancelled=cancelled)
        assert there.link.alive  # one slow answer says nothing
        await there.give_up(cancelled=cancelled)
        async with asyncio.timeout(20):
            await there.running
        assert (there.link.alive, counters.links_mute) == (False, 1)


async def test_a_link_is_given_its_time() -> None:
    counters = LinkCounters()
    async with far(counters, mute_s=3600) as there:
        for _ in range(5):
            await there.give_up()
        assert (there.link.alive, counters.links_mute) == (True, 0)


async def test_a_link_that_answers_others_stays() -> None:
    counters = LinkCounters()
    async with far(counters) as there:
        answering = asyncio.create_task(answer(there, AskStats))
        for _ in range(3):
            asking = asyncio.ensure_future(there.link.call(AskStats(), 60))
            await asyncio.sleep(0)  # it is sent first
            assert await there.link.call(Release(1), 20) == Done(Status.OK)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await there.give_up()
            assert await there.link.call(Release(1), 20) == Done(Status.OK)
        assert (there.link.alive, counters.links_mute) == (True, 0)
        there.link.abort()
        await answering


async def test_pages_that_come_are_heard() -> None:
    """Long before the whole reply has."""
    counters = LinkCounters()
    async with far(counters) as there:
        await there.give_up()
        await there.stream.receive()
        targets = [memoryview(bytearray(8)) for _ in range(2)]
        reading = asyncio.ensure_future(there.link.read(1, 0, targets, 60))
        header, _ = await there.stream.receive()
        there.sock.send(pack_frame(header.call, encode(PagesSent([8, 8])), 16) + b"x" * 8)
        async with asyncio.timeout(20):
            while bytes(targets[0]) != b"x" * 8:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
        await there.give_up()
        assert (there.link.alive, counters.links_mute) == (True, 0)
        there.sock.send(b"y" * 8)
        assert len(await reading or []) == 2
