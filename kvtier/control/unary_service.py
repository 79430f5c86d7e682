"""A gRPC service of plain questions and answers. A request that is no message of its kind is refused, and not logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc.aio import ServicerContext

Answer = Callable[[Any, "ServicerContext[Any, Any]"], Awaitable[Message]]


def unary_service(name: str, methods: Mapping[str, tuple[Answer, type[Message]]]) -> grpc.GenericRpcHandler:
    """For a `grpc.aio` server; `methods` say who answers, and to what kind of message."""
    served = {method: _handler(answer, kind) for method, (answer, kind) in methods.items()}
    return grpc.method_handlers_generic_handler(name, served)


def _handler(answer: Answer, kind: type[Message]) -> Any:
    async def answered(data: bytes, context: ServicerContext[Any, Any]) -> Message:
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no {kind.DESCRIPTOR.name}: {error}")
        return await answer(request, context)

    return grpc.unary_unary_rpc_method_handler(answered, response_serializer=lambda reply: reply.SerializeToString())
