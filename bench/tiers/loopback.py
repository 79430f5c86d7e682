"""Pages of another node: lease, bytes, checksum and release over a link, beside a bare TCP stream of as many bytes."""

from __future__ import annotations

import asyncio
import mmap
import socket
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from statistics import median

import msgspec

from bench.tiers.buffers import Buffer
from engine_adapters.launch.environments import ROOT
from kvtier.client.copier import PortableCopier
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.space import PageSpace
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.transport.page_reader import RemotePage, TcpPageReader
from kvtier.wire.messages import Acquire, Acquired, Peer, Release

PAGE_BYTES = 4 << 20
_PAGES = 8
_DEADLINE_S = 10.0
_SPACE = PageSpace("bench", "bytes", "flat", PAGE_BYTES)


class LoopbackRatio(msgspec.Struct, frozen=True):
    ratio: float
    raw_gb_per_s: float


def loopback_ratio(agent_socket: Path, peer: Peer, rounds: int) -> LoopbackRatio:
    """All pages under one lease as a stage fetches them, and a stream of as many from as large a memory, in turn.

    Raises `PeerUnavailable`.
    """
    digests = [sha256(f"loopback/{page}".encode()).digest() for page in range(_PAGES)]
    source = Buffer(_PAGES * PAGE_BYTES)
    source.mark(PAGE_BYTES, 5)
    client = PageClient(agent_socket, _SPACE, PortableCopier(), ClientSettings(connect_s=5, put_s=30))
    try:
        assert all(client.put(b"".join(digests), source.pages(PAGE_BYTES))), "an empty pool takes eight pages"
    finally:
        client.close()
    return asyncio.run(_ours(peer, digests, rounds))


async def _ours(peer: Peer, digests: list[bytes], rounds: int) -> LoopbackRatio:
    command = [sys.executable, "-m", "bench.tiers.raw_sender", str(PAGE_BYTES), str(len(digests))]
    links = PeerLinks(LinkSettings())
    targets = [memoryview(mmap.mmap(-1, PAGE_BYTES)) for _ in digests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as sender:  # noqa: ASYNC220 - once, before
        assert sender.stdout is not None
        with socket.create_connection(("127.0.0.1", int(sender.stdout.readline()))) as raw:
            ratios, rates = [], []
            for number in range(rounds + 1):
                raw_s = sum(_raw(raw, target) for target in targets)
                ours_s = await _get(links, peer, digests, targets)
                if number:  # the first opens the link
                    ratios.append(raw_s / ours_s)
                    rates.append(len(digests) * PAGE_BYTES / raw_s / 1e9)
    await links.close()
    return LoopbackRatio(median(ratios), median(rates))


def _raw(raw: socket.socket, target: memoryview) -> float:
    started_s = time.perf_counter()
    raw.sendall(b"?")
    done = 0
    while done < len(target):
        done += raw.recv_into(target[done:])
    return time.perf_counter() - started_s


async def _get(links: PeerLinks, peer: Peer, digests: list[bytes], targets: list[memoryview]) -> float:
    started_s = time.perf_counter()
    link = await links.to(peer)
    space = await link.attach(_SPACE, _DEADLINE_S)
    acquired = await link.call(Acquire(space, b"".join(digests), 1000 * _DEADLINE_S), _DEADLINE_S)
    assert isinstance(acquired, Acquired)
    pages = [RemotePage(index, *where) for index, where in enumerate(zip(acquired.offsets, acquired.lengths, strict=True))]
    checksums = await TcpPageReader().read(link, acquired.lease, pages, targets, _DEADLINE_S)
    assert checksums is not None
    assert b"".join(checksums) == acquired.checksums
    await link.call(Release(acquired.lease), _DEADLINE_S)
    return time.perf_counter() - started_s
