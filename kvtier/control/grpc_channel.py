"""One address that is asked by gRPC. What goes wrong is told in our words, for gRPC's own are meant for its authors."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

_REFUSED = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
_AGAIN_MS = 1000  # gRPC's own pause before a lost server is tried again grows to two minutes


class Unanswered(Exception):
    """Nobody answers, not in time, or not what was asked."""


class GrpcChannel:
    """`close` must be awaited. `whom` says in faults who was asked."""

    def __init__(self, whom: str, address: str, deadline_s: float) -> None:
        self._whom = f"{whom} at {address}"
        self._address = address
        self._deadline_s = deadline_s
        self._channel: aio.Channel | None = None  # made in the loop that first asks

    async def ask(self, service: str, method: str, request: Message, reply: type[Message]) -> Any:
        """A message of the kind `reply`. Raises `Unanswered`."""
        if self._channel is None:
            pauses = ("grpc.initial_reconnect_backoff_ms", "grpc.min_reconnect_backoff_ms", "grpc.max_reconnect_backoff_ms")
            self._channel = aio.insecure_channel(self._address, options=[(pause, _AGAIN_MS) for pause in pauses])
        call: Any = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            return await call(request, timeout=self._deadline_s)
        except aio.AioRpcError as error:
            raise Unanswered(self._fault(method, error.code(), error.details())) from error
        except (grpc.RpcError, DecodeError) as error:
            raise Unanswered(f"{self._whom} gave no answer to {method}: {error}") from error

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _fault(self, method: str, code: grpc.StatusCode, details: str | None) -> str:
        match code:
            case grpc.StatusCode.UNAVAILABLE:
                return f"{self._whom} cannot be reached by gRPC"
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"{self._whom} gave no answer to {method} within {self._deadline_s:g} s"
            case grpc.StatusCode.UNIMPLEMENTED:
                return f"{self._whom} is none: what answers there knows no {method}"
            case _ if code in _REFUSED:
                return f"{self._whom} refused {method}: {details}"
            case _:
                return f"{self._whom} failed at {method}: {code.name}"
