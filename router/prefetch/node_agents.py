"""The seam to the node agents, as small as what prefetch needs of them, and its implementation over their own wire.

Every call has a deadline. What an agent cannot do is `AgentFault`, with the planner's reason for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from kvtier.agent.stager import StageState
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import REPLICATED, PageSpace, Shard
from kvtier.page.status import Status
from kvtier.prefetch.events import FailReason
from kvtier.transport.links import PeerLinks
from kvtier.transport.peer_link import PeerLink, PeerRefused, PeerUnavailable
from kvtier.wire import messages as wire
from kvtier.wire.messages import Peer

_CALL_S = 2.0
_Reply = TypeVar("_Reply", bound=wire.Message)


class AgentFault(Exception):
    def __init__(self, reason: FailReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Pages(msgspec.Struct, frozen=True):
    """Pages by their whole digests, joined. `models`: names under which engines may have stored them."""

    models: frozenset[str]
    page_tokens: int
    digests: bytes

    @property
    def count(self) -> int:
        return len(self.digests) // DIGEST_BYTES


class Ticket(NamedTuple):
    """One thing asked of one node, shard by shard."""

    node: str
    numbers: tuple[int, ...]


class StageProgress(msgspec.Struct, frozen=True):
    """`ready_pages`: from the first on, in DRAM for every shard. `moved_bytes`: that came from elsewhere."""

    ended: bool
    state: StageState
    ready_pages: int
    moved_bytes: int


class NodeAgents(Protocol):
    """Raises `AgentFault`."""

    async def stage(
        self, pages: Pages, node: str, source: str, deadline_ms: float, budget_bytes: int, hold_ms: float
    ) -> Ticket:
        """Bring pages into `node`'s DRAM, from `source` where that is another node, else from its own SSD."""
        ...

    async def progress(self, ticket: Ticket) -> StageProgress: ...

    async def cancel(self, ticket: Ticket) -> None: ...

    async def pin(self, pages: Pages, node: str, ttl_ms: float) -> Ticket: ...

    async def unpin(self, ticket: Ticket) -> None: ...

    async def free_bytes(self, node: str) -> int:
        """Of its DRAM."""
        ...


class LinkedAgents:
    """Agents by node name, over the links that agents use among themselves, which are the caller's."""

    def __init__(self, peers: Mapping[str, Peer], links: PeerLinks) -> None:
        self.peers = dict(peers)
        self._links = links
        self._spaces: dict[str, tuple[PageSpace, ...]] = {}

    async def stage(
        self, pages: Pages, node: str, source: str, deadline_ms: float, budget_bytes: int, hold_ms: float
    ) -> Ticket:
        sources = [] if source == node else [self._peer(source)]
        asked = source if source != node else node
        numbers = []
        for link, space in await self._shards(pages, node, asked):
            order = wire.Stage(space, pages.digests, sources, deadline_ms, budget_bytes, hold_ms)
            numbers.append((await _ask(link, order, wire.Staging)).stage)
        return Ticket(node, tuple(numbers))

    async def progress(self, ticket: Ticket) -> StageProgress:
        link = await self._to(ticket.node)
        told = [await _ask(link, wire.AskStage(number), wire.Staging) for number in ticket.numbers]
        states = [_state(each, ticket.node) for each in told]
        running = [state for state in states if state in (StageState.QUEUED, StageState.FETCHING)]
        failed = [state for state in states if state not in (StageState.READY, *running)]
        state = running[0] if running else failed[0] if failed else StageState.READY
        ready = min((each.leading for each in told), default=0)
        return StageProgress(not running, state, ready, sum(each.fetched_bytes for each in told))

    async def cancel(self, ticket: Ticket) -> None:
        link = await self._to(ticket.node)
        for number in ticket.numbers:
            await _ask(link, wire.CancelStage(number), wire.Done)

    async def pin(self, pages: Pages, node: str, ttl_ms: float) -> Ticket:
        numbers = []
        for link, space in await self._shards(pages, node, node):
            pinned = await _ask(link, wire.PinPages(space, pages.digests, ttl_ms), wire.PagesPinned)
            if pinned.status is not Status.OK:
                raise AgentFault(FailReason.NO_ROOM, f"{node} pins nothing: {pinned.status.name}")
            numbers.append(pinned.pin)
        return Ticket(node, tuple(numbers))

    async def unpin(self, ticket: Ticket) -> None:
        link = await self._to(ticket.node)
        for number in ticket.numbers:
            await _ask(link, wire.Unpin(number), wire.Done)

    async def free_bytes(self, node: str) -> int:
        numbers = (await _ask(await self._to(node), wire.AskStats(), wire.Stats)).numbers
        free = numbers.get("dram_bytes", 0.0) - numbers.get("dram_used_bytes", 0.0)
        if not isfinite(free):
            raise AgentFault(FailReason.NODE_LOST, f"{node} tells of {free} free bytes")
        return int(free)

    def _peer(self, node: str) -> Peer:
        if node not in self.peers:
            raise AgentFault(FailReason.NODE_LOST, f"no agent of node {node!r} is configured")
        return self.peers[node]

    async def _to(self, node: str) -> PeerLink:
        try:
            return await self._links.to(self._peer(node))
        except PeerUnavailable as error:
            raise AgentFault(FailReason.NODE_LOST, str(error)) from error

    async def _shards(self, pages: Pages, node: str, holder: str) -> list[tuple[PeerLink, int]]:
        """Every shard of the pages' space, attached at `node`. `holder` knows which spaces there are."""
        spaces = _matching(await self._spaces_of(holder), pages)
        if not spaces:
            self._spaces.pop(holder, None)
            spaces = _matching(await self._spaces_of(holder), pages)
        if not spaces:
            raise AgentFault(FailReason.NO_COPY, f"{holder} knows no pages of {sorted(pages.models)}")
        link = await self._to(node)
        try:
            return [(link, await link.attach(space, _CALL_S)) for whole in spaces for space in shards_of(whole)]
        except PeerUnavailable as error:
            raise AgentFault(FailReason.NODE_LOST, str(error)) from error
        except PeerRefused as error:
            raise AgentFault(FailReason.TRANSFER, str(error)) from error

    async def _spaces_of(self, node: str) -> tuple[PageSpace, ...]:
        known = self._spaces.get(node)
        if known is None:
            told = await _ask(await self._to(node), wire.AskSpaces(), wire.Spaces)
            known = self._spaces[node] = tuple(told.spaces.values())
        return known


def shards_of(whole: PageSpace) -> Iterator[PageSpace]:
    """The spaces of all ranks that make up the pages of a whole one."""
    shard = whole.shard
    ranks = (REPLICATED,) if shard.tp_rank == REPLICATED else range(shard.tp_size)
    for tp in ranks:
        for pp in range(shard.pp_size):
            for cp in range(shard.cp_size):
                own = Shard(tp, shard.tp_size, pp, shard.pp_size, cp, shard.cp_size)
                yield msgspec.structs.replace(whole, shard=own)


def _matching(spaces: tuple[PageSpace, ...], pages: Pages) -> list[PageSpace]:
    """By the model's name as engines tell it, a path's last part counting as the name."""
    names = set(map(model_name, pages.models))
    return [space for space in spaces if space.page_tokens == pages.page_tokens and model_name(space.model) in names]


def model_name(model: str) -> str:
    """A model's own name: engines may have been given a path, or an owner before it."""
    return model.rstrip("/").rpartition("/")[2]


def _state(told: wire.Staging, node: str) -> StageState:
    try:
        return StageState(told.state)
    except ValueError as error:
        raise AgentFault(FailReason.TRANSFER, f"{node} tells of a stage that is {told.state!r}") from error


async def _ask(link: PeerLink, request: wire.Request, kind: type[_Reply]) -> _Reply:
    try:
        reply = await link.call(request, _CALL_S)
    except PeerUnavailable as error:
        raise AgentFault(FailReason.NODE_LOST, str(error)) from error
    except PeerRefused as error:
        raise AgentFault(FailReason.NO_ROOM, str(error)) from error
    if not isinstance(reply, kind):
        raise AgentFault(FailReason.NO_COPY, f"{type(reply).__name__} in answer to {type(request).__name__}")
    return reply
