"""Pages of another node as a stage fetches them (leased, claimed here, moved, checked, committed), beside a bare TCP stream."""

from __future__ import annotations

import asyncio
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
from kvtier.agent.agent import monotonic_ms
from kvtier.agent.fetcher import Fetcher
from kvtier.agent.progress import Progress
from kvtier.client.copier import PortableCopier
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.pool.dram_pool import DramPool
from kvtier.store.node_store import NodeStore
from kvtier.store.settings import DramSettings
from kvtier.transport.links import LinkSettings, PeerLinks
from kvtier.transport.page_reader import TcpPageReader
from kvtier.wire.messages import Peer

PAGE_BYTES = 4 << 20
PAGES = 32  # a prompt of 2,048 tokens at 64 a page
_BYTES = PAGES * PAGE_BYTES
_DEADLINE_MS = 10_000.0
_SPACE = PageSpace("bench", "bytes", "flat", PAGE_BYTES)


class LoopbackRatio(msgspec.Struct, frozen=True):
    ratio: float
    raw_gb_per_s: float


def loopback_ratio(agent_socket: Path, peer: Peer, rounds: int) -> LoopbackRatio:
    """All pages in one fetch, and a stream of as many bytes from and into memory of the same kind, in turn."""
    digests = [sha256(f"loopback/{page}".encode()).digest() for page in range(PAGES)]
    source = Buffer(_BYTES)
    source.mark(PAGE_BYTES, 5)
    client = PageClient(agent_socket, _SPACE, PortableCopier(), ClientSettings(connect_s=5, put_s=30))
    try:
        assert all(client.put(b"".join(digests), source.pages(PAGE_BYTES))), "an empty pool takes them all"
    finally:
        client.close()
    return asyncio.run(_beside_raw(peer, b"".join(digests), rounds))


async def _beside_raw(peer: Peer, digests: bytes, rounds: int) -> LoopbackRatio:
    links = PeerLinks(LinkSettings())
    pool = DramPool.create(_BYTES)
    store = NodeStore(DramSettings(bytes=pool.bytes), None, epoch=1)
    fetcher = Fetcher(store, pool, links, TcpPageReader(), Progress(), monotonic_ms)
    command = [sys.executable, "-m", "bench.tiers.raw_sender", str(PAGE_BYTES), str(PAGES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as sender:  # noqa: ASYNC220 - once, before
        assert sender.stdout is not None
        with socket.create_connection(("127.0.0.1", int(sender.stdout.readline()))) as raw:
            ratios, rates = [], []
            for number in range(rounds + 1):
                raw_s = _raw(raw, pool.view(0, _BYTES))
                ours_s = await _fetch(fetcher, peer, digests)
                store.clear()
                if number:  # the first opens the link
                    ratios.append(raw_s / ours_s)
                    rates.append(_BYTES / raw_s / 1e9)
    await links.close()
    pool.close()
    return LoopbackRatio(median(ratios), median(rates))


def _raw(raw: socket.socket, target: memoryview) -> float:
    started_s = time.perf_counter()
    raw.sendall(b"?")
    done = 0
    while done < len(target):
        done += raw.recv_into(target[done:])
    return time.perf_counter() - started_s


async def _fetch(fetcher: Fetcher, peer: Peer, digests: bytes) -> float:
    """Raises where not every page has come."""
    started_s = time.perf_counter()
    fetched = await fetcher.fetch(_SPACE, digests, peer, monotonic_ms() + _DEADLINE_MS)
    spent_s = time.perf_counter() - started_s
    await fetcher.close()
    if fetched.statuses != [Status.OK] * PAGES:
        raise RuntimeError(f"pages of another node came as {fetched.statuses}")
    return spent_s
