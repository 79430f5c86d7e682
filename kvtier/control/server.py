"""The gRPC side of an agent: its control surface for gateways, put in front of what answers the agents' own wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message
from grpc import aio

from kvtier.control import control_pb2 as pb
from kvtier.control.grpc_control import SERVICE
from kvtier.control.grpc_port import server_at
from kvtier.control.unary_service import Answer, unary_service
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.wire import messages as wire

_GRACE_S = 1.0
_MAX_COLUMNS = 4096

_Reply = TypeVar("_Reply", bound=wire.Message)


class Answerer(Protocol):
    """One client of the agent, as `wire` knows them: asks, and is answered."""

    async def ask(self, request: wire.Request) -> wire.Reply: ...


class ControlServer:
    """`start`, then `close`, both awaited. `connect` makes a client for one question: what it pins ends in its own time."""

    def __init__(self, node: str, connect: Callable[[], Answerer]) -> None:
        self.port = 0
        self._node = node
        self._connect = connect
        self._server: aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port, chosen by the system for 0. Raises `AddressTaken`."""
        self._server, self.port = server_at("control", host, port)
        methods: dict[str, tuple[Answer, type[Message]]] = {
            "ReadNode": (self._read_node, pb.ReadNodeRequest),
            "Pin": (self._pin, pb.PinRequest),
            "Unpin": (self._unpin, pb.UnpinRequest),
            "SetCuts": (self._set_cuts, pb.CutRequest),
        }
        self._server.add_generic_rpc_handlers((unary_service(SERVICE, methods),))
        await self._server.start()
        return self.port

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE_S)

    async def _read_node(self, _: pb.ReadNodeRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        stats = await _ask(self._connect(), wire.AskStats(), wire.Stats, context)
        spaces = await _ask(self._connect(), wire.AskSpaces(), wire.Spaces, context)
        return pb.Node(
            node=self._node,
            epoch=spaces.epoch,
            names=list(stats.numbers),
            values=list(stats.numbers.values()),
            spaces=[msgspec.msgpack.encode(space) for space in spaces.spaces.values()],
        )

    async def _pin(self, request: pb.PinRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        await _check(context, len(request.spaces), len(request.digests), len(request.ttl_ms))
        reply = pb.PinReply()
        try:
            for spelled, digests, ttl_ms in zip(request.spaces, request.digests, request.ttl_ms, strict=True):
                pinned = await self._pin_one(spelled, digests, ttl_ms, context)
                reply.statuses.append(pinned.status)
                reply.pins.append(pinned.pin)
                reply.pages.append(pinned.pages)
        except BaseException:  # nobody will know the pins that were made: all are answered, or none holds anything
            for pin in filter(None, reply.pins):
                await self._connect().ask(wire.Unpin(pin))
            raise
        return reply

    async def _pin_one(
        self, spelled: bytes, digests: bytes, ttl_ms: float, context: aio.ServicerContext[Any, Any]
    ) -> wire.PagesPinned:
        try:
            space = msgspec.msgpack.decode(spelled, type=PageSpace)
        except (msgspec.DecodeError, RecursionError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no page space: {error}")
        client = self._connect()
        attached: wire.Attached = await _ask(client, wire.Attach(space), wire.Attached, context)
        return await _ask(client, wire.PinPages(attached.space, digests, ttl_ms), wire.PagesPinned, context)

    async def _unpin(self, request: pb.UnpinRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        replies = [await _ask(self._connect(), wire.Unpin(pin), wire.Done, context) for pin in request.pins]
        return pb.UnpinReply(ended=[reply.status is Status.OK for reply in replies])

    async def _set_cuts(self, request: pb.CutRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        await _check(context, len(request.workers), len(request.digests), len(request.ttl_ms))
        for worker, digest, ttl_ms in zip(request.workers, request.digests, request.ttl_ms, strict=True):
            await _ask(self._connect(), wire.SetCut(worker, digest, ttl_ms), wire.Done, context)
        return pb.CutReply()


async def _ask(client: Answerer, request: wire.Request, kind: type[_Reply], context: aio.ServicerContext[Any, Any]) -> _Reply:
    reply = await client.ask(request)
    if isinstance(reply, kind):
        return reply
    reason = reply.reason if isinstance(reply, wire.Refused) else f"{type(reply).__name__} to {type(request).__name__}"
    return await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)


async def _check(context: aio.ServicerContext[Any, Any], *columns: int) -> None:
    if len(set(columns)) > 1 or columns[0] > _MAX_COLUMNS:
        reason = f"columns of {', '.join(map(str, columns))}: they must be equal, and {_MAX_COLUMNS} at most"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
