"""The master's picture: pool pages by their whole keys, and everything, pool pages and engines' blocks, in the one index.

Pure, and bounded by the index but for the pool keys, which clients' capacities bound. A client's engine blocks are the source
`WorkerKey(node_id)`, its pool pages `NodeKey(node_id, "umbp")`. Who is expired is not believed; its engine blocks are believed
again when it is back, its pages when it has sent them all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import NodeKey
from kvtier.umbp.clients import Beat, Capacity, Client, Clients
from kvtier.umbp.keys import block_id

HBM, DRAM, SSD = 1, 2, 3
_ENGINE_TIERS = {HBM: Tier.L1, DRAM: Tier.L2, SSD: Tier.L4}
_POOL_TIERS = {HBM: Tier.L3, DRAM: Tier.L3, SSD: Tier.L4}
_WIRE_TIERS = {Tier.L1: HBM, Tier.L2: DRAM, Tier.L3: DRAM, Tier.L4: SSD}
_MAX_HITS = 1_000_000
POOL_SPACE = "umbp"


class Event(NamedTuple):
    add: bool
    key: str
    tier: int
    size: int


class Location(NamedTuple):
    tier: int
    size: int


class Placed(NamedTuple):
    """Where a block may be put: `exists` somewhere already, `node` "" where nobody has room."""

    exists: bool
    node: str = ""
    tier: int = DRAM


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """What must outlive the master itself."""

    clients: list[Client]
    pages: dict[str, dict[str, Location]]
    engine_blocks: dict[str, list[tuple[int, int]]]  # node -> (block, tier)


class MasterState:
    """`rng` chooses among nodes that are as good as each other."""

    def __init__(self, index: BlockIndex, rng: Random, expire_ms: float = 30_000.0) -> None:
        self.index = index
        self.clients = Clients(expire_ms)
        self.ignored_reports = 0  # from nodes that are not registered
        self._rng = rng
        self._pages: dict[str, dict[str, Location]] = {}  # key -> node -> where
        self._keys_of: dict[str, set[str]] = {}  # node -> its keys
        self._hits: OrderedDict[str, int] = OrderedDict()

    def register(self, client: Client, now_ms: float) -> None:
        """A new life: nothing of an earlier one's pages is kept. Raises `AlreadyRegistered`."""
        client.heard_ms = now_ms
        self.clients.register(client)
        self._forget_pages(client.node_id)
        self._trust(client.node_id, pages=True)

    def unregister(self, node_id: str) -> None:
        self.clients.by_id.pop(node_id, None)
        self._forget_pages(node_id)
        self.index.drop_source(_pool(node_id))
        self.index.drop_source(WorkerKey(node_id))

    def heartbeat(
        self,
        node_id: str,
        bundles: Sequence[tuple[int, Sequence[Event]]],
        capacities: tuple[Capacity, ...],
        *,
        full: bool,
        baseline: int,
        now_ms: float,
    ) -> Beat:
        beat = self.clients.beat(node_id, [seq for seq, _ in bundles], capacities, full, baseline, now_ms)
        if beat.full:
            self._forget_pages(node_id)
        if beat.revived or beat.full or beat.request_full_sync:
            self._trust(node_id, pages=self.clients.by_id[node_id].synced)
        for _, events in bundles if beat.full else bundles[beat.first :]:
            for event in events:
                self._apply(node_id, event, now_ms)
        return beat

    def expire(self, now_ms: float) -> None:
        for node_id in self.clients.expire(now_ms):
            self.index.set_trust(WorkerKey(node_id), False)
            self.index.set_trust(_pool(node_id), False)

    def report(self, node_id: str, hashes: Iterable[str], tier: int, now_ms: float) -> bool:
        """An engine's blocks, added. False from a node that is not registered, whose report counts for nothing."""
        if not self.clients.alive(node_id) or tier not in _ENGINE_TIERS:
            self.ignored_reports += 1
            return False
        source, there = WorkerKey(node_id), _ENGINE_TIERS[tier]
        fresh = tuple(block for block in dict.fromkeys(map(block_id, hashes)) if not self.index.holds(source, block, there))
        self.index.apply(source, BlocksStored(fresh, None, there, 0), now_ms)
        return True

    def revoke(self, node_id: str, hashes: Iterable[str], tier: int, now_ms: float) -> None:
        if tier in _ENGINE_TIERS:
            blocks = tuple(dict.fromkeys(map(block_id, hashes)))
            self.index.apply(WorkerKey(node_id), BlocksRemoved(blocks, _ENGINE_TIERS[tier]), now_ms)

    def revoke_tier(self, node_id: str, tier: int, now_ms: float) -> None:
        if tier in _ENGINE_TIERS:
            there = _ENGINE_TIERS[tier]
            blocks = tuple(block for block, held in self._engine_blocks(node_id) if held == there)
            self.index.apply(WorkerKey(node_id), BlocksRemoved(blocks, there), now_ms)

    def revoke_node(self, node_id: str) -> None:
        self.index.clear(WorkerKey(node_id))

    def match(self, hashes: Sequence[str], *, count: bool) -> dict[str, dict[int, list[str]]]:
        """node -> tier -> which of `hashes` it holds there, in the order they were asked. Engines and pool together."""
        matches: dict[str, dict[int, list[str]]] = {}
        for text in dict.fromkeys(hashes):
            holders = self.index.holders(block_id(text))
            found = {(_node_of(source), _WIRE_TIERS[tier]) for source, tier in holders}
            for node, tier in sorted(found):
                matches.setdefault(node, {}).setdefault(tier, []).append(text)
            if found and count:
                self._hits[text] = self._hits.pop(text, 0) + 1
        while len(self._hits) > _MAX_HITS:
            self._hits.popitem(last=False)
        return matches

    def hits(self, hashes: Iterable[str]) -> dict[str, int]:
        return {text: self._hits[text] for text in dict.fromkeys(hashes) if text in self._hits}

    def find(self, key: str, requester: str, exclude: Iterable[str]) -> tuple[str, Location] | None:
        """Where to read a pool page from: the nearest tier, the requester itself before others."""
        left_out = set(exclude)
        able = {node: at for node, at in self._pages.get(key, {}).items() if node not in left_out and self._believed(node)}
        if not able:
            return None
        tier = min(at.tier for at in able.values())
        nodes = [node for node, at in able.items() if at.tier == tier]
        node = requester if requester in nodes else self._rng.choice(nodes)
        return node, able[node]

    def exists(self, key: str) -> bool:
        return any(map(self._believed, self._pages.get(key, ())))

    def place(self, keys: Sequence[str], sizes: Sequence[int], exclude: Iterable[str]) -> list[Placed]:
        """One place a key, on the nodes with most DRAM left; what this call places counts as taken."""
        left_out = set(exclude)
        room = {node: left for node in self.clients.by_id if node not in left_out and (left := self._room(node)) is not None}
        placed = []
        for key, size in zip(keys, sizes, strict=True):
            if self.exists(key):
                placed.append(Placed(exists=True))
                continue
            node = max(room, key=room.__getitem__, default="")
            if not node or room[node] < size:
                placed.append(Placed(exists=False))
                continue
            room[node] -= size
            placed.append(Placed(False, node))
        return placed

    def save(self) -> Saved:
        blocks = {node: [(block, int(tier)) for block, tier in self._engine_blocks(node)] for node in self.clients.by_id}
        return Saved(list(self.clients.by_id.values()), self._pages, blocks)

    def restore(self, saved: Saved, now_ms: float) -> None:
        """What an earlier life of the master knew. Nobody is believed before it has been heard of."""
        for client in saved.clients:
            client.alive = client.synced = False
            client.heard_ms = now_ms
            self.clients.by_id[client.node_id] = client
        for node_id, blocks in saved.engine_blocks.items():
            self.index.set_trust(WorkerKey(node_id), False)
            self.index.set_trust(_pool(node_id), False)
            for tier in Tier:
                held = tuple(block for block, there in blocks if there == tier)
                self.index.apply(WorkerKey(node_id), BlocksStored(held, None, tier, 0), now_ms)
        for key, places in saved.pages.items():
            for node_id, at in places.items():
                self._apply(node_id, Event(True, key, at.tier, at.size), now_ms)

    def _apply(self, node_id: str, event: Event, now_ms: float) -> None:
        if event.tier not in _POOL_TIERS:
            return
        places = self._pages.get(event.key, {})
        before = places.get(node_id)
        if event.add:
            self._pages.setdefault(event.key, places)[node_id] = Location(event.tier, event.size)
            self._keys_of.setdefault(node_id, set()).add(event.key)
        elif before is None or before.tier != event.tier:
            return
        else:
            self._forget_page(node_id, event.key)
        self._project(node_id, event.key, before, now_ms)

    def _project(self, node_id: str, key: str, before: Location | None, now_ms: float) -> None:
        """The index counts stores: keys of one block that differ in their suffix are as many stores."""
        after = self._pages.get(key, {}).get(node_id)
        blocks = (block_id(key),)
        if before is not None and (after is None or after.tier != before.tier):
            self.index.apply(_pool(node_id), BlocksRemoved(blocks, _POOL_TIERS[before.tier]), now_ms)
        if after is not None and (before is None or after.tier != before.tier):
            self.index.apply(_pool(node_id), BlocksStored(blocks, None, _POOL_TIERS[after.tier], 0), now_ms)

    def _forget_page(self, node_id: str, key: str) -> None:
        self._keys_of[node_id].discard(key)
        places = self._pages[key]
        del places[node_id]
        if not places:
            del self._pages[key]

    def _forget_pages(self, node_id: str) -> None:
        for key in list(self._keys_of.get(node_id, ())):
            self._forget_page(node_id, key)
        self.index.clear(_pool(node_id))

    def _trust(self, node_id: str, *, pages: bool) -> None:
        self.index.set_trust(WorkerKey(node_id), True)
        self.index.set_trust(_pool(node_id), pages)

    def _believed(self, node_id: str) -> bool:
        client = self.clients.by_id.get(node_id)
        return client is not None and client.alive and client.synced

    def _room(self, node_id: str) -> int | None:
        client = self.clients.by_id[node_id]
        dram = [capacity.available_bytes for capacity in client.capacities if capacity.tier == DRAM]
        return dram[0] if dram and client.alive else None

    def _engine_blocks(self, node_id: str) -> Iterable[tuple[int, Tier]]:
        for part in self.index.holdings(WorkerKey(node_id)):
            for block, planes in part:
                yield from ((block, tier) for tier in Tier if planes >> (tier - 1) & 1)


def _pool(node_id: str) -> NodeKey:
    return NodeKey(node_id, POOL_SPACE)


def _node_of(source: WorkerKey | NodeKey) -> str:
    if isinstance(source, NodeKey):
        return source.node
    return source.worker_id if not source.dp_rank else f"{source.worker_id}#{source.dp_rank}"
