"""Follows what one agent says about its pages into the indexes that want it, by asking every so often.

An agent that does not answer is not believed until it does; what it held is kept for then. A large answer is taken in pieces
between which others run, and the node is believed only when it is whole.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from costmodel.values import Tier
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.node_feed import NodeFeed, NodeStep, NumberedBatch
from kvtier.index.project import project_node
from kvtier.index.source_key import NodeKey
from kvtier.index.sources import SourceLimit
from kvtier.page.space import PageSpace
from kvtier.transport.links import PeerLinks
from kvtier.transport.peer_link import PeerLink, PeerRefused, PeerUnavailable
from kvtier.wire.messages import AskSpaces, EventBatch, EventRun, Events, Peer, ReplayEvents, Spaces

_SPACE_NAME_CHARS = 12


class FollowSettings(msgspec.Struct, frozen=True, kw_only=True):
    poll_ms: float = 100.0
    spaces_ms: float = 2000.0  # between two looks at which spaces there are
    retry_ms: float = 1000.0  # after an agent did not answer
    deadline_ms: float = 2000.0  # of one answer


class FollowStatus(msgspec.Struct, frozen=True):
    """`live`: every space that is followed is believed."""

    node: str
    live: bool
    spaces: int
    applied: int
    gaps: int
    restarts: int
    snapshots: int
    fault: str
    pages: dict[Tier, int] = {}  # of all spaces that are followed


class _Followed:
    """One space, in one index."""

    def __init__(self, source: NodeKey, index: BlockIndex) -> None:
        self.source = source
        self.index = index
        self.feed = NodeFeed()
        self.pages: Counter[Tier] = Counter()

    def count(self, step: NodeStep) -> None:
        """A node stores no page of a tier twice, and removes none that is not there."""
        if step.clear:
            self.pages.clear()
        for batch in step.batches:
            for event in batch.events:
                if isinstance(event, BlocksStored):
                    self.pages[event.tier] += len(event.hashes)
                elif isinstance(event, BlocksRemoved) and event.tier is not None:
                    self.pages[event.tier] -= len(event.hashes)


Choose = Callable[[PageSpace], Sequence[BlockIndex]]


class AgentFollower:
    """`run` is its life. `choose` says which indexes want a space; it is asked again every `spaces_ms`."""

    def __init__(
        self, peer: Peer, links: PeerLinks, choose: Choose, clock_ms: Callable[[], float], settings: FollowSettings
    ) -> None:
        self.peer = peer
        self.applied = 0  # events
        self.fault = "not asked yet"
        self._links = links
        self._choose = choose
        self._clock_ms = clock_ms
        self._settings = settings
        self._followed: dict[tuple[bytes, int], _Followed] = {}  # by space and index
        self._looked_ms = float("-inf")

    @property
    def status(self) -> FollowStatus:
        feeds = [followed.feed for followed in self._followed.values()]
        return FollowStatus(
            self.peer.node,
            not self.fault and all(feed.live for feed in feeds),
            len({space for space, _ in self._followed}),
            self.applied,
            sum(feed.gaps for feed in feeds),
            sum(feed.restarts for feed in feeds),
            sum(feed.snapshots for feed in feeds),
            self.fault,
            dict(sum((followed.pages for followed in self._followed.values()), Counter())),
        )

    async def run(self) -> None:
        """Until cancelled; then nothing of the node is left in the indexes, and whoever runs it again begins anew."""
        try:
            while True:
                await self._round()
                pause_ms = self._settings.retry_ms if self.fault else self._settings.poll_ms
                await asyncio.sleep(pause_ms / 1000)
        finally:
            for followed in self._followed.values():
                followed.index.drop_source(followed.source)
            self._followed.clear()
            self._looked_ms = float("-inf")

    async def _round(self) -> None:
        try:
            link = await self._links.to(self.peer)
            if self._clock_ms() - self._looked_ms >= self._settings.spaces_ms:
                await self._look(link)
            for (space, _), followed in list(self._followed.items()):
                await self._ask(link, space, followed)
        except (PeerUnavailable, PeerRefused, SourceLimit) as error:
            self.fault = str(error)
            self._looked_ms = float("-inf")  # it may come back with other spaces
            for followed in self._followed.values():
                await self._obey(followed, followed.feed.lost())
        else:
            self.fault = ""

    async def _look(self, link: PeerLink) -> None:
        reply = await link.call(AskSpaces(), self._settings.deadline_ms / 1000)
        if not isinstance(reply, Spaces):
            raise PeerRefused(f"{type(reply).__name__} is no answer to AskSpaces")
        wanted = {(digest, id(index)): index for digest, space in reply.spaces.items() for index in self._choose(space)}
        for key in self._followed.keys() - wanted.keys():
            followed = self._followed.pop(key)
            followed.index.drop_source(followed.source)
        for key, index in wanted.items():
            if key not in self._followed:
                self._followed[key] = _Followed(NodeKey(self.peer.node, key[0].hex()[:_SPACE_NAME_CHARS]), index)
        self._looked_ms = self._clock_ms()

    async def _ask(self, link: PeerLink, space: bytes, followed: _Followed) -> None:
        reply = await link.call(ReplayEvents(space, followed.feed.next_seq), self._settings.deadline_ms / 1000)
        if not isinstance(reply, Events):
            raise PeerRefused(f"{type(reply).__name__} is no answer to ReplayEvents")
        try:
            batches = [decode_batch(batch) for batch in reply.batches]
        except ValueError as error:
            raise PeerRefused(f"no events: {error}") from error
        await self._obey(followed, followed.feed.accept(reply.epoch, batches, snapshot=reply.snapshot))

    async def _obey(self, followed: _Followed, step: NodeStep) -> None:
        for _ in project_node(followed.index, followed.source, step, self._clock_ms()):
            await asyncio.sleep(0)
        followed.count(step)
        self.applied += sum(len(batch.events) for batch in step.batches)


def decode_batch(batch: EventBatch) -> NumberedBatch:
    """Raises ValueError for hashes or a tier that are none."""
    return NumberedBatch(batch.seq, tuple(map(_decode_run, batch.events)))


def _decode_run(run: EventRun) -> BlockEvent:
    hashes = tuple(array("q", run.hashes))
    if run.stored:
        return BlocksStored(hashes, None, Tier(run.tier), run.block_tokens)
    return BlocksRemoved(hashes, Tier(run.tier) if run.tier else None)
