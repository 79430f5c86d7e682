"""The gRPC side of an agent: its control surface for gateways, put in front of what answers the agents' own wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
import msgspec
from google.protobuf.message import Message
from grpc import aio

from kvtier.control import control_pb2 as pb
from kvtier.control.grpc_control import SERVICE
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.wire import messages as wire

_GRACE_S = 1.0
_MAX_COLUMNS = 4096

Ask = Callable[[wire.Request], Awaitable[wire.Reply]]
Answer = Callable[[Any, "aio.ServicerContext[Any, Any]"], Awaitable[Message]]


class Answerer(Protocol):
    """One client of the agent, as `wire` knows them: asks, and is answered."""

    async def ask(self, request: wire.Request) -> wire.Reply: ...


class ControlServer:
    """`start`, then `close`, both awaited. `client` stands for all gateways: what they pin ends in its own time."""

    def __init__(self, node: str, client: Answerer) -> None:
        self.port = 0
        self._node = node
        self._client = client
        self._server: aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port, chosen by the system for 0. Raises RuntimeError where that address is taken."""
        self._server = aio.server()
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.port = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()
        return self.port

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, tuple[Answer, type[Message]]] = {
            "ReadNode": (self._read_node, pb.ReadNodeRequest),
            "Pin": (self._pin, pb.PinRequest),
            "Unpin": (self._unpin, pb.UnpinRequest),
            "SetCuts": (self._set_cuts, pb.CutRequest),
        }
        served: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            for name, (answer, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, served)

    async def _read_node(self, _: pb.ReadNodeRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        stats = await self._ask(wire.AskStats(), wire.Stats, context)
        spaces = await self._ask(wire.AskSpaces(), wire.Spaces, context)
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
        for spelled, digests, ttl_ms in zip(request.spaces, request.digests, request.ttl_ms, strict=True):
            try:
                space = msgspec.msgpack.decode(spelled, type=PageSpace)
            except msgspec.DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no page space: {error}")
            attached = await self._ask(wire.Attach(space), wire.Attached, context)
            pinned = await self._ask(wire.PinPages(attached.space, digests, ttl_ms), wire.PagesPinned, context)
            reply.statuses.append(pinned.status)
            reply.pins.append(pinned.pin)
            reply.pages.append(pinned.pages)
        return reply

    async def _unpin(self, request: pb.UnpinRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        replies = [await self._ask(wire.Unpin(pin), wire.Done, context) for pin in request.pins]
        return pb.UnpinReply(ended=[reply.status is Status.OK for reply in replies])

    async def _set_cuts(self, request: pb.CutRequest, context: aio.ServicerContext[Any, Any]) -> Message:
        await _check(context, len(request.workers), len(request.digests), len(request.ttl_ms))
        for worker, digest, ttl_ms in zip(request.workers, request.digests, request.ttl_ms, strict=True):
            await self._ask(wire.SetCut(worker, digest, ttl_ms), wire.Done, context)
        return pb.CutReply()

    async def _ask(self, request: wire.Request, kind: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        reply = await self._client.ask(request)
        if isinstance(reply, kind):
            return reply
        reason = reply.reason if isinstance(reply, wire.Refused) else f"{type(reply).__name__} to {type(request).__name__}"
        return await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)


async def _check(context: aio.ServicerContext[Any, Any], *columns: int) -> None:
    if len(set(columns)) > 1 or columns[0] > _MAX_COLUMNS:
        reason = f"columns of {', '.join(map(str, columns))}: they must be equal, and {_MAX_COLUMNS} at most"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
