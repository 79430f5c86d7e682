"""Connections to peers: opened when first wanted, shared by everyone who wants the same, let go when nobody does.

A peer that could not be reached is left alone for a while, so that work meant for a dead node fails at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import NamedTuple

import msgspec

from kvtier.settings.address import authority
from kvtier.settings.ranges import Count, Ms, PauseMs
from kvtier.transport.peer_link import LinkCounters, PeerLink, PeerUnavailable
from kvtier.wire.messages import Peer
from kvtier.wire.stream import FrameStream


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node treats its peers."""

    connect_ms: PauseMs = 1000
    backoff_ms: Ms = 1000  # after a failed connection
    stall_ms: PauseMs = 5000  # a peer that moves no byte in the middle of a frame, or answers nothing
    idle_ms: Ms = 60_000
    max_calls: Count = 64  # under way on one connection
    max_links: Count = 256


class _Open(NamedTuple):
    link: PeerLink
    running: asyncio.Task[None]


class _LeftAlone(NamedTuple):
    until_s: float
    why: str


class PeerLinks:
    """All links of a node. `close` must be awaited."""

    def __init__(self, settings: LinkSettings) -> None:
        self.counters = LinkCounters()
        self._settings = settings
        self._open: dict[Peer, _Open] = {}
        self._worn: list[_Open] = []  # their peers have new ones
        self._opening: dict[Peer, asyncio.Task[PeerLink]] = {}
        self._left_alone: dict[Peer, _LeftAlone] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._worn)

    async def to(self, peer: Peer) -> PeerLink:
        """A live link. Raises `PeerUnavailable`."""
        found = self._open.get(peer)
        if found is not None and found.link.alive and not found.link.worn:
            return found.link
        opening = self._opening.get(peer)
        if opening is None:
            self._check(peer)
            opening = asyncio.get_running_loop().create_task(self._connect(peer))
            self._opening[peer] = opening
            opening.add_done_callback(lambda task: self._opened(peer, task))
        return await asyncio.shield(opening)

    def sweep(self) -> None:
        """End links that nobody has used for a while, and forget what is over. Call every second or so."""
        now_s = asyncio.get_running_loop().time()
        self._open = {peer: each for peer, each in self._open.items() if not each.running.done()}
        self._worn = [each for each in self._worn if not each.running.done()]
        for link, _ in self._all():
            if not link.busy and now_s - link.idle_since_s > self._settings.idle_ms / 1000:
                link.abort()
        self._left_alone = {peer: each for peer, each in self._left_alone.items() if each.until_s > now_s}

    async def close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        for link, _ in self._all():
            link.abort()
        tasks = [*self._opening.values(), *(running for _, running in self._all())]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _all(self) -> list[_Open]:
        return [*self._open.values(), *self._worn]

    def _check(self, peer: Peer) -> None:
        now_s = asyncio.get_running_loop().time()
        alone = self._left_alone.get(peer)
        if alone is not None and alone.until_s > now_s:
            raise PeerUnavailable(alone.why)
        if len(self) >= self._settings.max_links:
            self.sweep()
        if len(self) >= self._settings.max_links:
            raise PeerUnavailable(f"{len(self)} links are open, as many as max_links allows")

    async def _connect(self, peer: Peer) -> PeerLink:
        connect_s = self._settings.connect_ms / 1000
        try:
            async with asyncio.timeout(connect_s):
                sock = await _dial(peer)
        except (OSError, ValueError, OverflowError, TimeoutError) as error:  # the middle ones: what is no host, or no port
            what = _why(error) or f"timed out after {connect_s:g} s"
            raise _unavailable(peer, what) from error
        stall_s = self._settings.stall_ms / 1000
        stream = FrameStream(sock, stall_s)
        link = PeerLink(stream, self.counters, self._settings.max_calls, stall_s)
        try:
            await link.greet(peer.node, connect_s)
        except BaseException as error:
            stream.close()
            if isinstance(error, PeerUnavailable):
                raise _unavailable(peer, str(error)) from error
            raise
        return link

    def _opened(self, peer: Peer, task: asyncio.Task[PeerLink]) -> None:
        self._opening.pop(peer, None)
        if task.cancelled():
            return
        if (fault := task.exception()) is not None:
            self.counters.links_failed += 1
            until_s = asyncio.get_running_loop().time() + self._settings.backoff_ms / 1000
            self._left_alone[peer] = _LeftAlone(until_s, str(fault))
            return
        self.counters.links_opened += 1
        link = task.result()
        if peer in self._open:
            self._worn.append(self._open[peer])
        self._open[peer] = _Open(link, asyncio.get_running_loop().create_task(link.run()))


async def _dial(peer: Peer) -> socket.socket:
    loop = asyncio.get_running_loop()
    ((family, kind, protocol, _, address), *_) = await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, address)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _unavailable(peer: Peer, why: str) -> PeerUnavailable:
    return PeerUnavailable(f"no connection to {peer.node} at {authority(peer.host, peer.port)}: {why}")


def _why(error: Exception) -> str:
    """The system's own words, where asyncio has others for them; "" for a deadline."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else str(error)) or ""


def tune(sock: socket.socket) -> None:
    """Small frames leave at once, and a peer that vanished without a word is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
