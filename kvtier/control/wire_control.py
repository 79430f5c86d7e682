"""`NodeControl` over the agents' own wire: one call a thing that is asked, side by side on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from kvtier.control.node_control import CutOrder, NodeReport, NodeUnavailable, Pinned, PinOrder
from kvtier.page.status import Status
from kvtier.transport.links import PeerLinks
from kvtier.transport.peer_link import PeerLink, PeerRefused, PeerUnavailable
from kvtier.wire import messages as wire

_Reply = TypeVar("_Reply", bound=wire.Message)


class WireControl:
    """`links` belong to the caller."""

    def __init__(self, peer: wire.Peer, links: PeerLinks, deadline_s: float) -> None:
        self._peer = peer
        self._links = links
        self._deadline_s = deadline_s

    async def report(self) -> NodeReport:
        stats, spaces = await asyncio.gather(self._ask(wire.AskStats(), wire.Stats), self._ask(wire.AskSpaces(), wire.Spaces))
        return NodeReport(self._peer.node, spaces.epoch, stats.numbers, tuple(spaces.spaces.values()))

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        """All orders are answered, or none holds anything."""
        told = await asyncio.gather(*map(self._pin, orders), return_exceptions=True)
        fault = next((each for each in told if isinstance(each, BaseException)), None)
        pinned = [each for each in told if isinstance(each, Pinned)]
        if fault is not None:
            with suppress(NodeUnavailable):
                await self.unpin([each.pin for each in pinned if each.status is Status.OK])
            raise fault
        return pinned

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        replies = await asyncio.gather(*(self._ask(wire.Unpin(pin), wire.Done) for pin in pins))
        return [reply.status is Status.OK for reply in replies]

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None:
        await asyncio.gather(*(self._ask(wire.SetCut(*order), wire.Done) for order in orders))

    async def close(self) -> None:
        pass

    async def _pin(self, order: PinOrder) -> Pinned:
        with _unavailable():
            link = await self._links.to(self._peer)
            space = await link.attach(order.space, self._deadline_s)  # a number means a space on its own connection alone
            reply = await self._call(link, wire.PinPages(space, order.digests, order.ttl_ms), wire.PagesPinned)
        return Pinned(reply.status, reply.pin, reply.pages)

    async def _ask(self, request: wire.Request, kind: type[_Reply]) -> _Reply:
        with _unavailable():
            return await self._call(await self._links.to(self._peer), request, kind)

    async def _call(self, link: PeerLink, request: wire.Request, kind: type[_Reply]) -> _Reply:
        reply = await link.call(request, self._deadline_s)
        if not isinstance(reply, kind):
            raise NodeUnavailable(f"{type(reply).__name__} is no answer to {type(request).__name__}")
        return reply


@contextmanager
def _unavailable() -> Iterator[None]:
    """What links raise, as `NodeUnavailable`."""
    try:
        yield
    except (PeerUnavailable, PeerRefused) as error:
        raise NodeUnavailable(str(error)) from error
