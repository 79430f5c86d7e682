"""Looks at the KV event sockets of one engine: does a publisher listen there, and does its replay socket answer."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

from engine_adapters.base import EngineInfo, EventFeed
from engine_adapters.sglang.frames import replay_request
from loadback.doctor.check import Check, ok, warn

DEADLINE_S = 3.0
FAR_AHEAD = 2**63 - 1  # no engine has published as much: only the end marker comes back


async def check_events(name: str, info: EngineInfo) -> list[Check]:
    return [await _check_feed(name, feed) for feed in info.event_feeds]


async def _check_feed(name: str, feed: EventFeed) -> Check:
    what = f"events of rank {feed.dp_rank}"
    if not await speaks_zmtp(feed.address):
        fix = "open the port of --kv-events-config to this host, or correct its endpoint"
        return warn(name, what, f"no publisher answers at {feed.address}", fix)
    if feed.replay_address is None:
        return ok(name, what, f"published at {feed.address}, without replay")
    if not await answers_replay(feed.replay_address):
        return warn(name, what, f"replay does not answer at {feed.replay_address}", "open the replay port to this host")
    return ok(name, what, f"published at {feed.address}, replay answers")


async def speaks_zmtp(address: str) -> bool:
    """A ZeroMQ socket greets first: ten bytes from 0xFF to 0x7F (ZMTP 3)."""
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                greeting = await reader.readexactly(10)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    return greeting[0] == 0xFF and greeting[9] == 0x7F


async def answers_replay(address: str) -> bool:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await socket.send_multipart(replay_request(FAR_AHEAD))
                await socket.recv_multipart()
        except TimeoutError:
            return False
    return True
