"""The seam to the node agents, as small as what prefetch needs of them, and its implementation over their own wire.

Every call has a deadline. What an agent cannot do is `AgentFault`, with the planner's reason for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import inf, isfinite
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
    """`node`: whose agent was asked; "" where no agent was."""

    def __init__(self, reason: FailReason, message: str, node: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.node = node


class Pages(msgspec.Struct, frozen=True):
    """Pages by their whole digests, joined. `models`: names under which engines may have stored them."""

    models: frozenset[str]
    page_tokens: int
    digests: bytes

    @property
    def count(self) -> int:
        return len(self.digests) // DIGEST_BYTES


class Ticket(NamedTuple):
    """One thing asked of one node, space by space and shard by shard. Its numbers mean nothing to another life of the agent.
    `there`: leading pages of a stage that lay there before."""

    node: str
    epoch: int
    spaces: tuple[tuple[int, ...], ...]
    there: int = 0


class Look(NamedTuple):
    """How an agent fares. `epoch`: which life of it answers."""

    epoch: int
    free_bytes: int  # of its DRAM
    stage_bytes: float = inf  # of it that stages may hold together


class StageProgress(msgspec.Struct, frozen=True):
    """Of the space that is best off: several may have the model's name, as one that its engines wrote with another KV type.
    `ready_pages`: from the first on, in DRAM for every shard. `moved_bytes`: that came from elsewhere."""

    ended: bool
    state: StageState
    ready_pages: int
    moved_bytes: int


class NodeAgents(Protocol):
    """Raises `AgentFault`."""

    async def stage(
        self, pages: Pages, node: str, source: str, deadline_ms: float, hold_ms: float, max_bytes: int | None
    ) -> Ticket:
        """Bring pages into `node`'s DRAM, from `source` where that is another node, else from its own SSD. No more than
        `max_bytes` come from another node; None = no such bound."""
        ...

    async def progress(self, ticket: Ticket) -> StageProgress: ...

    async def cancel(self, ticket: Ticket) -> None: ...

    async def pin(self, pages: Pages, node: str, ttl_ms: float) -> Ticket: ...

    async def unpin(self, ticket: Ticket) -> None: ...

    async def look(self, node: str) -> Look: ...


class LinkedAgents:
    """Agents by node name, over the links that agents use among themselves, which are the caller's."""

    def __init__(self, peers: Mapping[str, Peer], links: PeerLinks) -> None:
        self.peers = dict(peers)
        self._links = links

    async def stage(
        self, pages: Pages, node: str, source: str, deadline_ms: float, hold_ms: float, max_bytes: int | None
    ) -> Ticket:
        sources = [] if source == node else [self._peer(source)]
        link, spaces = await self._shards(pages, node, source)
        shards = sum(map(len, spaces))  # none may take another's part: which of the spaces has the pages is not known
        allowed = 0 if max_bytes is None else max(1, max_bytes // shards)

        async def begin(shard: int) -> int:
            order = wire.Stage(shard, pages.digests, sources, deadline_ms, allowed, hold_ms)
            begun = await _ask(node, link, order, wire.Staging)
            there.append(begun.leading)
            return begun.stage

        there: list[int] = []
        numbers = iter(await self._all(node, link, chain.from_iterable(spaces), begin, wire.CancelStage))
        return Ticket(node, _epoch(link), tuple(tuple(islice(numbers, len(shards))) for shards in spaces), max(there))

    async def progress(self, ticket: Ticket) -> StageProgress:
        link, node = await self._to(ticket.node), ticket.node
        if _epoch(link) != ticket.epoch:
            raise AgentFault(FailReason.NODE_LOST, f"the agent of {node} was restarted", node)
        found = []
        for numbers in ticket.spaces:
            told = [await _ask(node, link, wire.AskStage(number), wire.Staging) for number in numbers]
            found.append(_progress(told, node))
        best = max(found, key=lambda each: (each.state is StageState.READY, each.ready_pages))
        return StageProgress(
            all(each.ended for each in found), best.state, best.ready_pages, sum(each.moved_bytes for each in found)
        )

    async def cancel(self, ticket: Ticket) -> None:
        await self._end(ticket, wire.CancelStage)

    async def pin(self, pages: Pages, node: str, ttl_ms: float) -> Ticket:
        link, spaces = await self._shards(pages, node, node)

        async def begin(shard: int) -> int:
            pinned = await _ask(node, link, wire.PinPages(shard, pages.digests, ttl_ms), wire.PagesPinned)
            if pinned.status is not Status.OK:
                raise AgentFault(FailReason.NO_ROOM, f"{node} pins nothing: {pinned.status.name}", node)
            return pinned.pin

        held: list[tuple[int, ...]] = []
        faults: list[AgentFault] = []
        for shards in spaces:
            try:
                held.append(await self._all(node, link, shards, begin, wire.Unpin))
            except AgentFault as fault:
                faults.append(fault)
        if not held:
            raise faults[-1]
        return Ticket(node, _epoch(link), tuple(held))

    async def unpin(self, ticket: Ticket) -> None:
        await self._end(ticket, wire.Unpin)

    async def look(self, node: str) -> Look:
        link = await self._to(node)
        numbers = (await _ask(node, link, wire.AskStats(), wire.Stats)).numbers
        free = numbers.get("dram_bytes", 0.0) - numbers.get("dram_used_bytes", 0.0)
        held = numbers.get("stages_max_bytes", inf)
        if not isfinite(free) or not held >= 0:
            raise AgentFault(FailReason.NODE_LOST, f"{node} tells of {free} free bytes, and of {held} for stages", node)
        return Look(_epoch(link), int(free), held)

    async def _all(
        self,
        node: str,
        link: PeerLink,
        shards: Iterable[int],
        begin: Callable[[int], Awaitable[int]],
        undo: Callable[[int], wire.Request],
    ) -> tuple[int, ...]:
        """What each shard's is called; where one cannot be begun, none is."""
        told = await asyncio.gather(*map(begin, shards), return_exceptions=True)
        begun = tuple(each for each in told if isinstance(each, int))
        fault = next((each for each in told if isinstance(each, BaseException)), None)
        if fault is not None:
            with suppress(AgentFault):
                await self._end(Ticket(node, _epoch(link), (begun,)), undo)
            raise fault
        return begun

    async def _end(self, ticket: Ticket, undo: Callable[[int], wire.Request]) -> None:
        """Another life of the agent has nothing of it, and may have given its numbers to others."""
        link = await self._to(ticket.node)
        if _epoch(link) == ticket.epoch:
            for number in chain.from_iterable(ticket.spaces):
                await _ask(ticket.node, link, undo(number), wire.Done)

    def _peer(self, node: str) -> Peer:
        if node not in self.peers:
            raise AgentFault(FailReason.NODE_LOST, f"no agent of node {node!r} is configured", node)
        return self.peers[node]

    async def _to(self, node: str) -> PeerLink:
        try:
            return await self._links.to(self._peer(node))
        except PeerUnavailable as error:
            raise AgentFault(FailReason.NODE_LOST, str(error), node) from error

    async def _shards(self, pages: Pages, node: str, holder: str) -> tuple[PeerLink, list[list[int]]]:
        """Every shard of every space that may hold the pages, attached at `node`. `holder` knows which spaces there are, and is
        asked each time: an engine that comes back with another KV type writes to one that is new."""
        told = await _ask(holder, await self._to(holder), wire.AskSpaces(), wire.Spaces)
        spaces = _matching(told.spaces.values(), pages)
        if not spaces:
            raise AgentFault(FailReason.NO_COPY, f"{holder} knows no pages of {sorted(pages.models)}", holder)
        link = await self._to(node)
        try:
            return link, [[await link.attach(space, _CALL_S) for space in shards_of(whole)] for whole in spaces]
        except PeerUnavailable as error:
            raise AgentFault(FailReason.NODE_LOST, str(error), node) from error
        except PeerRefused as error:
            raise AgentFault(FailReason.TRANSFER, str(error), node) from error


def shards_of(whole: PageSpace) -> Iterator[PageSpace]:
    """The spaces of all ranks that make up the pages of a whole one."""
    shard = whole.shard
    ranks = (REPLICATED,) if shard.tp_rank == REPLICATED else range(shard.tp_size)
    for tp in ranks:
        for pp in range(shard.pp_size):
            for cp in range(shard.cp_size):
                own = Shard(tp, shard.tp_size, pp, shard.pp_size, cp, shard.cp_size)
                yield msgspec.structs.replace(whole, shard=own)


def _matching(spaces: Iterable[PageSpace], pages: Pages) -> list[PageSpace]:
    """By the model's name as engines tell it, a path's last part counting as the name."""
    names = set(map(model_name, pages.models))
    return [space for space in spaces if space.page_tokens == pages.page_tokens and model_name(space.model) in names]


def model_name(model: str) -> str:
    """A model's own name: engines may have been given a path, or an owner before it."""
    return model.rstrip("/").rpartition("/")[2]


def _epoch(link: PeerLink) -> int:
    """Of the agent's life at the other end."""
    return link.greeting.epoch if link.greeting is not None else 0


def _progress(told: Sequence[wire.Staging], node: str) -> StageProgress:
    """Of all shards of a space together: it runs while one does, and is ready once all are."""
    states = [_state(each, node) for each in told]
    running = [state for state in states if state in (StageState.QUEUED, StageState.FETCHING)]
    failed = [state for state in states if state not in (StageState.READY, *running)]
    state = running[0] if running else failed[0] if failed else StageState.READY
    ready = min((each.leading for each in told), default=0)
    return StageProgress(not running, state, ready, sum(each.fetched_bytes for each in told))


def _state(told: wire.Staging, node: str) -> StageState:
    try:
        return StageState(told.state)
    except ValueError as error:
        raise AgentFault(FailReason.TRANSFER, f"{node} tells of a stage that is {told.state!r}", node) from error


async def _ask(node: str, link: PeerLink, request: wire.Request, kind: type[_Reply]) -> _Reply:
    try:
        reply = await link.call(request, _CALL_S)
    except PeerUnavailable as error:
        raise AgentFault(FailReason.NODE_LOST, str(error), node) from error
    except PeerRefused as error:
        raise AgentFault(FailReason.NO_ROOM, str(error), node) from error
    if not isinstance(reply, kind):
        raise AgentFault(FailReason.NO_COPY, f"{type(reply).__name__} in answer to {type(request).__name__}", node)
    return reply
