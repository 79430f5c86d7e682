"""One agent, wired: pool, segments, store, mover, stager, links and listeners, and the tick that keeps them honest."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvtier.agent.config import AgentConfig, ListenConfig, SsdConfig
from kvtier.agent.desk import Desk
from kvtier.agent.desk_client import DeskClient
from kvtier.agent.fetcher import Fetcher
from kvtier.agent.listeners import Listeners
from kvtier.agent.mover import Mover
from kvtier.agent.places import CannotStart
from kvtier.agent.progress import Progress
from kvtier.agent.sharer import Sharer
from kvtier.agent.stager import Stager
from kvtier.agent.timed_reader import TimedPageReader
from kvtier.agent.traffic import Traffic
from kvtier.copy.address import extent_of
from kvtier.page.key import page_key
from kvtier.pool.dram_pool import DramPool
from kvtier.ssd.segments import SsdInUse, SsdSegments
from kvtier.store.node_store import NodeStore
from kvtier.store.page import SsdPlace
from kvtier.transport.links import PeerLinks
from kvtier.transport.one_sided import TransportUnavailable
from kvtier.transport.transport import Transport, open_transport
from kvtier.wire.messages import PROTOCOL_VERSION, Greeting, Peer

if TYPE_CHECKING:
    from kvtier.control.server import ControlServer

log = logging.getLogger(__name__)


_IDLE_MS = 10.0  # without a request
_TIDY_MS = 1000.0  # at most, for what is better done while idle


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class Agent:
    """`run` is its life. Made inside a running loop; `epoch` must differ from that of any earlier life."""

    def __init__(self, config: AgentConfig, epoch: int) -> None:
        """Takes memory and the SSD directory. Raises `BackingError`, `CannotStart`, `TransportUnavailable`, OSError."""
        self.config = config
        self.progress = Progress()
        dram = msgspec.structs.replace(config.dram, bytes=config.dram.whole_bytes)
        self.pool = DramPool.create(dram.bytes, dram.backing, prefault=dram.prefault)
        self._transport = _transport(config, epoch, self.pool)
        self.store = NodeStore(dram, config.ssd, epoch)
        self.traffic = Traffic(monotonic_ms)
        self.segments = _segments(config.ssd, self.pool)
        self._threads = ThreadPoolExecutor(config.ssd.io_threads if config.ssd else 1, "agent-io")
        self._mover = (
            Mover(self.store, self.pool, self.segments, self._threads, self.progress, self.traffic, monotonic_ms)
            if self.segments
            else None
        )
        self.links = PeerLinks(config.links)
        reader = TimedPageReader(self._transport.reader, self.traffic)
        self.fetcher = Fetcher(self.store, self.pool, self.links, reader, self.progress, monotonic_ms)
        self.stager = Stager(self.store, self.fetcher, self.progress, self.pump, config.stages, monotonic_ms)
        memory = self._transport.memory
        self.sharer = _sharer(config, self.store, self.links)
        self._desk = desk = Desk(
            self.store, self.pool, self.stager, self.progress, self.pump, self.numbers, monotonic_ms, self.traffic, memory
        )
        greeting = Greeting(PROTOCOL_VERSION, config.node, epoch, self.pool.bytes, self.pool.backing.value)
        self.listeners = Listeners(desk, greeting, self.pool.fd, config.serve)
        self._sharing: asyncio.Task[None] | None = None
        self._tidied_ms = 0.0
        self.port = 0  # for peers, once it runs
        self.control = _control(config.node, desk) if config.control is not None else None

    def recover(self) -> None:
        """Take in what an earlier life left on SSD."""
        if self.segments is None:
            return
        found = self.segments.recovered
        for page in found.pages:
            space = self.store.meet(page.space)
            record = page.record
            key = page_key(space, record.digest)
            place = SsdPlace(page.segment, record.offset)
            self.store.tiering.recover(key, record.length, record.checksum, record.kind, record.depth, place)
        if too_large := self.store.counters.recovered_too_large:
            log.warning("%d pages on SSD are longer than a slab and left out: raise dram.slab_bytes to have them", too_large)
        log.info(
            "recovered %d pages from %d segments, %d torn, %d KiB lost to damage, %d files rejected",
            len(found.pages), len(found.files), found.torn_pages, found.lost_bytes >> 10, len(found.rejected),
        )  # fmt: skip

    async def run(self, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set, then bring to SSD what is on its way. Raises `CannotStart`, `AddressTaken`."""
        self.recover()
        try:
            self.listeners.listen_unix(Path(self.config.socket))
            if self.config.listen is not None:
                self.port = self.listeners.listen_tcp(self.config.listen.host, self.config.listen.port)
            if self.control is not None and self.config.control is not None:
                await self._listen_control(self.control, self.config.control)
            log.info("agent %s serves %d MiB (%s)", self.config.node, self.pool.bytes >> 20, self.pool.backing.value)
            if self.sharer is not None:
                self._sharing = asyncio.get_running_loop().create_task(self.sharer.run())
            if ready is not None:
                ready.set()
            while not stop.is_set():
                self.tick()
                await _wait(stop, self.config.tick_ms / 1000)
        finally:
            await self._shut_down()

    async def _listen_control(self, server: ControlServer, config: ListenConfig) -> None:
        port = await server.start(config.host, config.port)
        log.info("agent %s answers gateways at %s:%d", self.config.node, config.host, port)

    def tick(self) -> None:
        now_ms = monotonic_ms()
        self.store.tick(now_ms)
        self.progress.made()  # what somebody waits for may have run out, or been cleared
        if now_ms - self._desk.asked_ms > _IDLE_MS or now_ms - self._tidied_ms > _TIDY_MS:
            self.store.tidy()
            self._tidied_ms = now_ms
        self.pump()
        self.links.sweep()
        self.stager.sweep()

    def pump(self) -> None:
        """Start what the store wants done with bytes."""
        if self._mover is not None:
            self._mover.pump()

    def numbers(self) -> dict[str, float]:
        """Everything there is to tell: counters, and gauges of this moment."""
        parts = [self.store.counters, self.listeners.counters, self.links.counters, self.fetcher.counters, self.stager.counters]
        if self._mover is not None:
            parts.append(self._mover.counters)
        if self.sharer is not None:
            parts.append(self.sharer.counters)
        counts = {name: value for part in parts for name, value in msgspec.structs.asdict(part).items()}
        return counts | self._gauges() | self.traffic.numbers()

    def _gauges(self) -> dict[str, float]:
        slabs, ssd = self.store.tiering.dram.slabs, self.store.tiering.ssd
        return {
            "dram_bytes": slabs.capacity_bytes,
            "dram_used_bytes": slabs.used_bytes,
            "dram_huge_bytes": self.pool.huge_bytes,
            "pinned_bytes": self.store.pinned_bytes,
            "stages_max_bytes": self.stager.max_bytes,
            "pages": len(self.store.catalog),
            "leases": self.store.running_leases,
            "writes_open": len(self.store.tiering.writes),
            "ssd_bytes": ssd.settings.bytes if ssd else 0,
            "ssd_live_bytes": ssd.live_bytes if ssd else 0,
            "ssd_segments": len(ssd.segments) if ssd else 0,
            "ssd_lost_bytes": self.segments.recovered.lost_bytes if self.segments else 0,
            "unwritten_pages": ssd.unwritten_pages if ssd else 0,
            "open_connections": self.listeners.open_connections,
            "open_links": len(self.links),
        }

    async def _shut_down(self) -> None:
        if self.control is not None:
            await self.control.close()
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)
        await self.stager.close()
        await self.listeners.close()
        await self.links.close()
        self._transport.stop()
        await self.fetcher.close()
        if self._mover is not None:
            self.pump()
            await self._mover.drain(self.config.drain_ms / 1000)
        self._transport.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self.segments is not None:
            self.segments.close()
        self.pool.close()


def _transport(config: AgentConfig, epoch: int, pool: DramPool) -> Transport:
    """Raises `TransportUnavailable`, and gives the memory back."""
    host = config.listen.host if config.listen is not None else None
    with extent_of(pool.view(0, pool.bytes), writable=True) as extent:
        memory = extent
    try:
        return open_transport(config.transport, f"{config.node}-{epoch}", host, memory)
    except TransportUnavailable:
        pool.close()
        raise


def _control(node: str, desk: Desk) -> ControlServer:
    from kvtier.control.server import ControlServer  # an agent without a control surface needs no gRPC

    return ControlServer(node, lambda: DeskClient(desk))


def _sharer(config: AgentConfig, store: NodeStore, links: PeerLinks) -> Sharer | None:
    """None where nothing is shared."""
    if config.share.idle or config.listen is None:
        return None
    peers = [Peer(peer.node, peer.host, peer.port) for peer in config.peers if peer.node != config.node]
    here = Peer(config.node, config.listen.host, config.listen.port)
    return Sharer(store, links, peers, here, config.share, monotonic_ms)


def _segments(config: SsdConfig | None, pool: DramPool) -> SsdSegments | None:
    """Raises `CannotStart`, and gives the memory back."""
    if config is None:
        return None
    try:
        return SsdSegments(Path(config.directory), config.segment_bytes, config.bytes // config.segment_bytes)
    except (SsdInUse, OSError) as error:
        pool.close()
        what = str(error) if isinstance(error, SsdInUse) else f"{error.filename or config.directory}: {error.strerror or error}"
        raise CannotStart(f"ssd.directory: {what}") from error


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
