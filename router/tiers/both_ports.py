"""An agent that is asked by gRPC at its `control_port`, while its pages are followed at its `port`."""

from __future__ import annotations

from kvtier.control.grpc_control import GrpcControl
from kvtier.control.node_control import NodeReport, NodeUnavailable
from kvtier.transport.links import PeerLinks
from kvtier.transport.peer_link import PeerUnavailable
from kvtier.wire.messages import Peer


class BothPorts(GrpcControl):
    """It fares well where both answer: of pages that are not followed none can be pinned. `links` are the caller's."""

    def __init__(self, peer: Peer, control_address: str, links: PeerLinks, deadline_s: float) -> None:
        super().__init__(peer.node, control_address, deadline_s)
        self._peer = peer
        self._links = links

    async def report(self) -> NodeReport:
        report = await super().report()
        try:
            await self._links.to(self._peer)
        except PeerUnavailable as error:
            raise NodeUnavailable(str(error)) from error
        return report
