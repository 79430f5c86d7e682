"""Pages read straight out of the peer's memory, by an engine that both nodes run (Mooncake, NIXL, MoRI).

The engine registers each node's memory file once; a peer asks over the link how to reach it. Engines block, so they run on
threads. What an engine has begun nobody here can stop: a read ends when nobody writes to its targets any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from kvtier.copy.address import extent_of
from kvtier.page.checksum import page_checksum
from kvtier.transport.page_reader import RemotePage
from kvtier.transport.peer_link import PeerLink, PeerRefused, PeerUnavailable
from kvtier.wire.messages import AskMemory, Done, MemoryAt, Renew

_LEASE_MS = 1000.0


class TransportUnavailable(Exception):
    """A transport that was asked for cannot run here. The message says which, why, and what to install or set."""


class TransferFailed(Exception):
    """Bytes did not come; nobody writes to their place any more."""


class Span(NamedTuple):
    """Bytes by their offsets in both memories."""

    local: int
    remote: int
    length: int


class OneSidedEngine(Protocol):
    """Made with this node's memory registered. Blocking; for several threads at once."""

    @property
    def introduction(self) -> bytes:
        """What a peer's engine needs to read from here."""
        ...

    def read(self, introduction: bytes, spans: Sequence[Span]) -> None:
        """From the peer that introduced itself so. Returns or raises `TransferFailed` once nobody writes here any more."""
        ...

    def stop(self) -> None:
        """Every read is to end soon."""
        ...

    def close(self) -> None:
        """Let go of the memory. No read is under way."""
        ...


class OneSidedPageReader:
    """`name` is what the peer must run too; `base` is the address of this node's memory. `close` before the engine's end."""

    def __init__(self, engine: OneSidedEngine, name: str, base: int, threads: int) -> None:
        self._engine = engine
        self._name = name
        self._base = base
        self._threads = ThreadPoolExecutor(threads, f"transport-{name}")
        self._introductions: WeakKeyDictionary[PeerLink, bytes] = WeakKeyDictionary()

    async def read(
        self, link: PeerLink, lease: int, pages: Sequence[RemotePage], targets: Sequence[memoryview], deadline_s: float
    ) -> list[bytes] | None:
        until_s = time.monotonic() + deadline_s
        introduction = await self._introduction(link, deadline_s)
        spans = [Span(self._offset(target), page.offset, page.length) for page, target in zip(pages, targets, strict=True)]
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, self._transfer, introduction, spans, targets, until_s)
        try:
            checksums = await asyncio.shield(job)
        except asyncio.CancelledError:
            await _ended(job)
            raise
        except TransferFailed as error:
            raise PeerUnavailable(f"{self._name}: {error}") from error
        return checksums if await self._still_leased(link, lease, until_s) else None

    def stop(self) -> None:
        """Reads under way are to fail soon, as those that come."""
        self._engine.stop()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _introduction(self, link: PeerLink, deadline_s: float) -> bytes:
        known = self._introductions.get(link)
        if known is not None:
            return known
        reply = await link.call(AskMemory(self._name), deadline_s)
        if not isinstance(reply, MemoryAt):
            raise PeerRefused(f"{type(reply).__name__} is no answer to AskMemory")
        self._introductions[link] = reply.introduction
        return reply.introduction

    def _transfer(
        self, introduction: bytes, spans: Sequence[Span], targets: Sequence[memoryview], until_s: float
    ) -> list[bytes]:
        if time.monotonic() >= until_s:
            raise TransferFailed("no thread was free in time")
        self._engine.read(introduction, spans)
        return list(map(page_checksum, targets))

    async def _still_leased(self, link: PeerLink, lease: int, until_s: float) -> bool:
        """Whether the bytes that were read were those of the leased pages: the peer does not see us read."""
        reply = await link.call(Renew(lease, _LEASE_MS), max(0.0, until_s - time.monotonic()))
        return reply == Done()

    def _offset(self, target: memoryview) -> int:
        with extent_of(target, writable=True) as extent:
            return extent.address - self._base


async def _ended(job: asyncio.Future[list[bytes]]) -> None:
    """However often we are told to go."""
    while not job.done():
        try:
            await asyncio.wait({job})
        except asyncio.CancelledError:
            continue
    if not job.cancelled():
        job.exception()  # whoever gave up is not to be told off
