"""Gives pages of this node to others: more copies of hot ones, and the only copy of what would be pushed out soon.

A round asks every peer for its room, lets the policies choose, and asks the chosen peers to stage from here; a page that was
placed elsewhere is handed over only when its new node says that it has it. Peers that are away are left out of the round.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan

import msgspec

from kvtier.page.key import PageKey, digest_of, space_of
from kvtier.policies.placement import NodeRoom, PlaceLocal, PlacementPolicy
from kvtier.policies.replication import Candidate, NoReplicas, ReplicationPolicy
from kvtier.settings.ranges import PauseMs, Share
from kvtier.store.gathering import Gathering
from kvtier.store.heat import hits_at
from kvtier.store.node_store import NodeStore
from kvtier.store.page import Page
from kvtier.transport.links import PeerLinks
from kvtier.transport.peer_link import PeerRefused, PeerUnavailable
from kvtier.wire.messages import AskStage, AskStats, CancelStage, Peer, Stage, Staging, Stats

log = logging.getLogger(__name__)

_ASK_S = 1.0
_POLL_S = 0.02
_LOOKED_AT = 4  # times what may move: some of the coldest pages belong here
_UNDER_WAY = ("queued", "fetching")
_MAX_REMEMBERED = 65_536


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node gives to others, and how often."""

    placement: PlacementPolicy = PlaceLocal()
    replication: ReplicationPolicy = NoReplicas()
    every_ms: PauseMs = 5000
    deadline_ms: PauseMs = 5000  # for a peer to fetch what it is offered
    max_moved_share: Share = 0.05  # of DRAM that is placed elsewhere in a round

    @property
    def idle(self) -> bool:
        return isinstance(self.placement, PlaceLocal) and isinstance(self.replication, NoReplicas)


class ShareCounters(msgspec.Struct):
    copied_pages: int = 0
    placed_pages: int = 0  # handed over to another node
    offers_failed: int = 0  # of pages, to a peer that did not take them
    share_crashes: int = 0  # faults of our own; should stay 0


class Sharer:
    """One per agent. `here` is where peers reach it; `clock_ms` is the store's."""

    def __init__(
        self,
        store: NodeStore,
        links: PeerLinks,
        peers: Sequence[Peer],
        here: Peer,
        settings: ShareSettings,
        clock_ms: Callable[[], float],
    ) -> None:
        self.counters = ShareCounters()
        self._store = store
        self._links = links
        self._peers = {peer.node: peer for peer in peers}
        self._here = here
        self._settings = settings
        self._clock_ms = clock_ms
        self._copies: OrderedDict[PageKey, set[str]] = OrderedDict()  # nodes that took one from us

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.every_ms / 1000)
            try:
                await self.round()
            except Exception:
                self.counters.share_crashes += 1
                log.exception("sharing pages failed")

    async def round(self) -> None:
        rooms = [room for room in await asyncio.gather(*map(self._room, self._peers.values())) if room is not None]
        if rooms:
            await self._copy(rooms)
            await self._place(rooms)

    async def _room(self, peer: Peer) -> NodeRoom | None:
        try:
            reply = await (await self._links.to(peer)).call(AskStats(), _ASK_S)
        except (PeerUnavailable, PeerRefused) as error:
            log.info("no word of %s: %s", peer.node, error)
            return None
        numbers = reply.numbers if isinstance(reply, Stats) else {}
        pool_bytes, used_bytes = numbers.get("dram_bytes", nan), numbers.get("dram_used_bytes", nan)
        if not 0 <= used_bytes <= pool_bytes < inf:
            log.warning("%s says nothing sensible about its room", peer.node)
            return None
        return NodeRoom(peer.node, int(pool_bytes - used_bytes), int(pool_bytes))

    async def _copy(self, rooms: Sequence[NodeRoom]) -> None:
        """Hot pages to the freest nodes that have no copy from us."""
        now_ms, half_life_ms = self._clock_ms(), self._store.settings.heat_half_life_ms
        pages = {page.key: page for page in self._store.take_recent_hits()}
        candidates = [
            Candidate(page.key, hits_at(page.heat, now_ms, half_life_ms), page.length, 1 + len(self._copies.get(page.key, ())))
            for page in pages.values()
        ]
        offers: dict[str, list[Page]] = defaultdict(list)
        freest = sorted(rooms, key=lambda room: (-room.free_bytes / room.pool_bytes, room.node))
        for key in self._settings.replication.choose(candidates):
            target = next((room.node for room in freest if room.node not in self._copies.get(key, ())), None)
            if target is not None:
                offers[target].append(pages[key])
        for node, offered in offers.items():
            for page in await self._offer(node, offered):
                self.counters.copied_pages += 1
                self._remember(page.key, node)

    async def _place(self, rooms: Sequence[NodeRoom]) -> None:
        """What would be pushed out soon and lies nowhere else, to where the policy says."""
        slabs, settings = self._store.tiering.dram.slabs, self._store.settings
        if slabs.used_bytes < (settings.low_watermark - self._settings.max_moved_share) * slabs.capacity_bytes:
            return
        all_rooms = [*rooms, NodeRoom(self._here.node, slabs.capacity_bytes - slabs.used_bytes, slabs.capacity_bytes)]
        offers: dict[str, list[Page]] = defaultdict(list)
        left_bytes = int(self._settings.max_moved_share * slabs.capacity_bytes)
        for page in self._store.tiering.dram.coldest_pages(_LOOKED_AT * left_bytes):
            node = self._settings.placement.place(page.key, page.length, self._here.node, all_rooms)
            if page.place is None and node in self._peers and page.length <= left_bytes:
                left_bytes -= page.length
                offers[node].append(page)
        for node, offered in offers.items():
            for page in await self._offer(node, offered):
                self.counters.placed_pages += 1
                self._store.hand_over(page, node)

    async def _offer(self, node: str, pages: Sequence[Page]) -> list[Page]:
        """Those that `node` has taken. They stay here meanwhile."""
        gathering = Gathering()
        taken: list[Page] = []
        try:
            self._store.gather([page.key for page in pages], gathering)
            for space, group in _by_space(gathering.held.values()).items():
                taken += group[: await self._stage(self._peers[node], space, group)]
        except (PeerUnavailable, PeerRefused) as error:
            log.info("%s takes no pages: %s", node, error)
        finally:
            self._store.let_go(gathering)
        self.counters.offers_failed += len(pages) - len(taken)
        return taken

    async def _stage(self, peer: Peer, space: bytes, pages: Sequence[Page]) -> int:
        """How many of `pages`, from the first on, lie in `peer`'s DRAM then. Raises `PeerUnavailable` and `PeerRefused`."""
        link = await self._links.to(peer)
        number = await link.attach(self._store.journals.space(space), _ASK_S)
        digests = b"".join(digest_of(page.key) for page in pages)
        until_ms = self._clock_ms() + self._settings.deadline_ms
        staging = await link.call(Stage(number, digests, [self._here], self._settings.deadline_ms), _ASK_S)
        late = False
        while isinstance(staging, Staging) and staging.state in _UNDER_WAY and not late:
            await asyncio.sleep(_POLL_S)
            if late := self._clock_ms() > until_ms:
                await link.call(CancelStage(staging.stage), _ASK_S)
            staging = await link.call(AskStage(staging.stage), _ASK_S)
        if not isinstance(staging, Staging) or not 0 <= staging.leading <= len(pages):
            raise PeerRefused("no answer to Stage that makes sense")
        return staging.leading

    def _remember(self, key: PageKey, node: str) -> None:
        self._copies.setdefault(key, set()).add(node)
        self._copies.move_to_end(key)
        if len(self._copies) > _MAX_REMEMBERED:
            self._copies.popitem(last=False)


def _by_space(pages: Iterable[Page]) -> dict[bytes, list[Page]]:
    groups: dict[bytes, list[Page]] = defaultdict(list)
    for page in pages:
        groups[space_of(page.key)].append(page)
    return groups
