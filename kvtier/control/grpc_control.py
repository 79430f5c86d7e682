"""`NodeControl` over gRPC: one message whatever the number of things that are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from google.protobuf.message import Message

from kvtier.control import control_pb2 as pb
from kvtier.control.grpc_channel import GrpcChannel, Unanswered
from kvtier.control.node_control import CutOrder, NodeReport, NodeUnavailable, Pinned, PinOrder
from kvtier.page.space import PageSpace
from kvtier.page.status import Status

SERVICE = "loadback.control.v1.NodeControl"


class GrpcControl:
    """`close` must be awaited. `node` is whom the answers must come from."""

    def __init__(self, node: str, address: str, deadline_s: float) -> None:
        self._node = node
        self._channel = GrpcChannel(f"{node}'s control_port", address, deadline_s)

    async def report(self) -> NodeReport:
        reply = await self._call("ReadNode", pb.ReadNodeRequest(), pb.Node)
        if reply.node != self._node:
            raise NodeUnavailable(f"the agent at its control_port is {reply.node}, not {self._node}")
        spaces = tuple(msgspec.msgpack.decode(space, type=PageSpace) for space in reply.spaces)
        return NodeReport(reply.node, reply.epoch, dict(zip(reply.names, reply.values, strict=True)), spaces)

    async def pin(self, orders: Sequence[PinOrder]) -> list[Pinned]:
        request = pb.PinRequest(
            spaces=[msgspec.msgpack.encode(order.space) for order in orders],
            digests=[order.digests for order in orders],
            ttl_ms=[order.ttl_ms for order in orders],
        )
        reply = await self._call("Pin", request, pb.PinReply)
        return [
            Pinned(Status(status), pin, pages)
            for status, pin, pages in zip(reply.statuses, reply.pins, reply.pages, strict=True)
        ]

    async def unpin(self, pins: Sequence[int]) -> list[bool]:
        return list((await self._call("Unpin", pb.UnpinRequest(pins=pins), pb.UnpinReply)).ended)

    async def set_cuts(self, orders: Sequence[CutOrder]) -> None:
        request = pb.CutRequest(
            workers=[order.worker for order in orders],
            digests=[order.digest for order in orders],
            ttl_ms=[order.ttl_ms for order in orders],
        )
        await self._call("SetCuts", request, pb.CutReply)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method: str, request: Message, reply: type[Message]) -> Any:
        try:
            return await self._channel.ask(SERVICE, method, request, reply)
        except Unanswered as error:
            raise NodeUnavailable(str(error)) from error
