"""Why a peer is not reached, told each time, also while it is left alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.transport.peer_link import PeerUnavailable
from kvtier.wire.frames import GREETING_CALL, pack_frame
from kvtier.wire.messages import PROTOCOL_VERSION, Greeting, Peer, encode


@pytest.fixture
async def links() -> AsyncIterator[PeerLinks]:
    links = PeerLinks(LinkSettings(connect_ms=5000, backoff_ms=3_600_000))
    yield links
    await links.close()


async def told(links: PeerLinks, peer: Peer) -> str:
    """Twice: when it is tried, and while it is left alone."""
    faults = []
    for _ in range(2):
        with pytest.raises(PeerUnavailable) as caught:
            await links.to(peer)
        faults.append(str(caught.value))
    assert links.counters.links_failed == 1
    assert faults[0] == faults[1]
    return faults[0]


async def test_a_peer_that_is_left_alone_is_told_with_the_cause(links: PeerLinks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lent:
        port = lent.getsockname()[1]
    assert await told(links, Peer("b", "127.0.0.1", port)) == f"no connection to b at 127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize(
    ("node", "version", "why"),
    [
        ("c", PROTOCOL_VERSION, "the agent there is c, not b"),
        ("b", 2, f"b speaks protocol 2, and here it is {PROTOCOL_VERSION}: let both be of one version of loadback"),
    ],
)
async def test_who_else_is_there_is_told(links: PeerLinks, node: str, version: int, why: str) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack_frame(GREETING_CALL, encode(Greeting(version, node, 1, 1, "plain"))))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await told(links, Peer("b", "127.0.0.1", port)) == f"no connection to b at 127.0.0.1:{port}: {why}"
