"""The simulated L3 and L4: every node's share of host DRAM, and its SSD, as one pool that holds each page once. No engine, no
gateway.

A page lies on the node whose engine first offered it, and every engine reads every node; or, as with node agents, engines read
their own node alone (`own_node`), and a page lies where an engine offered it last or where it was staged. Each node evicts its
own, least recently used and deepest first. A read takes its way's bandwidth in turn: within a node by copying threads, between
nodes by both their network cards.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from costmodel.values import Link, Tier
from engine_adapters.emulator.model.pool import Done, Reading
from engine_adapters.emulator.model.request import Namespace
from engine_adapters.emulator.model.timers import Lane
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored

Told = Callable[[str, BlockEvent], None]  # node, what happened there


class Ssd(msgspec.Struct, frozen=True):
    """L4: what one node's SSD holds, and how fast it is written and read, one after the other."""

    pages: int
    link: Link


class SharedPool:
    """`capacity_pages` of each node in DRAM; what leaves it goes to the node's `ssd`, if there is one, until it is read.

    `told` hears of every page that comes or goes.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        capacity_pages: int,
        page_tokens: int,
        page_bytes: float,
        told: Told,
        ssd: Ssd | None = None,
        *,
        own_node: bool = False,
    ) -> None:
        self._own_node = own_node
        self._held: dict[str, OrderedDict[int, None]] = {node: OrderedDict() for node in nodes}
        self._holder: dict[int, str] = {}
        self._capacity = capacity_pages
        self._page_tokens = page_tokens
        self.page_bytes = page_bytes
        self._told = told
        self._ssd = ssd
        self._disks: defaultdict[str, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._disk_of: dict[int, str] = {}
        self.disk_pages_read = 0
        self._lanes: defaultdict[tuple[str, str], Lane] = defaultdict(Lane)
        self.read_bytes: dict[str, float] = {"l3_local_to_l2": 0.0, "l3_remote_to_l2": 0.0}

    def add(self, node: str) -> None:
        """A node brings its share, empty."""
        self._held[node] = OrderedDict()

    def extent(self, hashes: Sequence[int], reader: str = "") -> int:
        """How many leading ones this node's engine finds, in DRAM or on SSD."""
        holder, disk_of = self._holder, self._disk_of
        for count, page in enumerate(hashes):
            node = holder.get(page) or disk_of.get(page)
            if node is None or (self._own_node and node != reader):
                return count
        return len(hashes)

    def read(self, node: str, hashes: Sequence[int], local: Link, remote: Link, now_ms: float) -> float:
        """When all of `hashes` have come to `node`. They are the most recently used now."""
        done_ms = self._promote(hashes, now_ms)
        sources: dict[str, int] = {}
        for page in reversed(hashes):
            source = self._holder.get(page)
            if source is not None:
                self._held[source].move_to_end(page)
                sources[source] = sources.get(source, 0) + 1
        for source, pages in sources.items():
            size_bytes = pages * self.page_bytes
            if source == node:
                self.read_bytes["l3_local_to_l2"] += size_bytes
                lanes, link = [(node, "copy")], local
            else:
                self.read_bytes["l3_remote_to_l2"] += size_bytes
                lanes, link = [(source, "out"), (node, "in")], remote
            taken = [self._lanes[lane].take(now_ms, size_bytes / link.bytes_per_ms) for lane in lanes]
            done_ms = max(done_ms, *taken) + link.latency_ms
        for source in sources:
            self._evict(source, now_ms)  # only now: what was promoted may be more than DRAM holds
        return done_ms

    def write(self, node: str, hashes: Sequence[int], now_ms: float) -> None:
        held, holder = self._held[node], self._holder
        stored = []
        self._forget_on_disk([page for page in hashes if page in self._disk_of])
        if self._own_node:
            self._forget_elsewhere(node, hashes)
        for page in reversed(hashes):  # the deepest is the oldest of them
            source = holder.get(page)
            if source is None:
                holder[page] = node
                held[page] = None
                stored.append(page)
            else:
                self._held[source].move_to_end(page)
        if stored:
            self._told(node, BlocksStored(tuple(reversed(stored)), None, Tier.L3, self._page_tokens))
            self._evict(node, now_ms)

    def _forget_elsewhere(self, node: str, pages: Sequence[int]) -> None:
        gone: dict[str, list[int]] = {}
        for page in pages:
            source = self._holder.get(page)
            if source is not None and source != node:
                del self._held[source][page], self._holder[page]
                gone.setdefault(source, []).append(page)
        for source, removed in gone.items():
            self._told(source, BlocksRemoved(tuple(removed), Tier.L3))

    def touch(self, hashes: Sequence[int]) -> None:
        """A gateway's look-up counts as a use of every page of the prompt, whichever tier then serves it."""
        for page in reversed(hashes):
            source = self._holder.get(page)
            if source is not None:
                self._held[source].move_to_end(page)
            elif page in self._disk_of:
                self._disks[self._disk_of[page]].move_to_end(page)

    def free_pages(self, node: str) -> int:
        return self._capacity - len(self._held[node])

    def move(self, source: str, target: str, hashes: Sequence[int], pace: Link, now_ms: float) -> float:
        """Pages that `source` still holds go to `target`; when the last of them is there. Each is held once at every moment."""
        moved = [page for page in hashes if self._holder.get(page) == source]
        if not moved or source == target:
            return now_ms
        for page in reversed(moved):
            del self._held[source][page]
            self._held[target][page] = None
            self._holder[page] = target
        self._told(source, BlocksRemoved(tuple(moved), Tier.L3))
        self._told(target, BlocksStored(tuple(moved), None, Tier.L3, self._page_tokens))
        self._evict(target, now_ms)
        size_bytes = len(moved) * self.page_bytes
        self._count("l3_remote_to_l3", size_bytes)
        ways = ((source, "out"), (target, "in"))
        return max(self._lanes[way].take(now_ms, size_bytes / pace.bytes_per_ms) for way in ways)

    def lose(self, node: str) -> None:
        """The node is gone with all that it held."""
        for tier, where, held in ((Tier.L3, self._holder, self._held), (Tier.L4, self._disk_of, self._disks)):
            gone = tuple(held.pop(node, ()))
            for page in gone:
                del where[page]
            if gone:
                self._told(node, BlocksRemoved(gone, tier))

    def _evict(self, node: str, now_ms: float) -> None:
        held, removed = self._held[node], []
        while len(held) > self._capacity:
            page, _ = held.popitem(last=False)
            del self._holder[page]
            removed.append(page)
        if removed:
            self._told(node, BlocksRemoved(tuple(removed), Tier.L3))
            if self._ssd is not None:
                self._demote(node, removed, self._ssd, now_ms)

    def _demote(self, node: str, pages: Sequence[int], ssd: Ssd, now_ms: float) -> None:
        """Written behind all that the SSD has to do; they can be read at once, from the buffer that is being written."""
        disk = self._disks[node]
        for page in pages:
            disk[page] = None
            self._disk_of[page] = node
        size_bytes = len(pages) * self.page_bytes
        self._lanes[node, "ssd"].take(now_ms, size_bytes / ssd.link.bytes_per_ms)
        self._count("l3_to_l4", size_bytes)
        self._told(node, BlocksStored(tuple(pages), None, Tier.L4, self._page_tokens))
        dropped = [disk.popitem(last=False)[0] for _ in range(len(disk) - ssd.pages)]
        for page in dropped:
            del self._disk_of[page]
        if dropped:
            self._told(node, BlocksRemoved(tuple(dropped), Tier.L4))

    def _promote(self, hashes: Sequence[int], now_ms: float) -> float:
        """Bring what lies on SSD back to its node's DRAM; when that is done. Nothing is evicted for it yet."""
        done_ms = now_ms
        for node, pages in self._forget_on_disk([page for page in hashes if page in self._disk_of]).items():
            assert self._ssd is not None, "only an SSD holds them"
            for page in reversed(pages):
                self._holder[page] = node
                self._held[node][page] = None
            self._told(node, BlocksStored(tuple(pages), None, Tier.L3, self._page_tokens))
            size_bytes, link = len(pages) * self.page_bytes, self._ssd.link
            done_ms = max(done_ms, self._lanes[node, "ssd"].take(now_ms, size_bytes / link.bytes_per_ms) + link.latency_ms)
            self._count("l4_to_l3", size_bytes)
            self.disk_pages_read += len(pages)
        return done_ms

    def _forget_on_disk(self, pages: Sequence[int]) -> dict[str, list[int]]:
        """They lie in DRAM from now on, each once; by the node whose SSD held them."""
        by_node: dict[str, list[int]] = {}
        for page in pages:
            node = self._disk_of.pop(page)
            del self._disks[node][page]
            by_node.setdefault(node, []).append(page)
        for node, gone in by_node.items():
            self._told(node, BlocksRemoved(tuple(gone), Tier.L4))
        return by_node

    def _count(self, way: str, size_bytes: float) -> None:
        self.read_bytes[way] = self.read_bytes.get(way, 0.0) + size_bytes


class NodePool:
    """The pool as one node's engine uses it: `engine_adapters.emulator.model.pool.Pool`."""

    def __init__(self, pool: SharedPool, node: str, local: Link, remote: Link) -> None:
        self._pool = pool
        self._node = node
        self._local = local
        self._remote = remote

    def read(self, hashes: Sequence[int], namespace: Namespace, least: int, now_ms: float, done: Done) -> Reading:
        found = self._pool.extent(hashes, self._node)
        if found < least:
            return Reading(0, now_ms)
        return Reading(found, self._pool.read(self._node, hashes[:found], self._local, self._remote, now_ms))

    def write(self, hashes: Sequence[int], namespace: Namespace, depth: int, now_ms: float) -> None:
        self._pool.write(self._node, hashes, now_ms)
