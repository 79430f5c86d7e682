"""Faults of gRPC in our own words, with the address that was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio

from kvtier.control import control_pb2 as pb
from kvtier.control.grpc_channel import GrpcChannel, Unanswered
from kvtier.control.grpc_port import server_at
from kvtier.control.unary_service import unary_service

Context = aio.ServicerContext[Any, Any]


class Service:
    """Answers as it is told to, and is at `address`."""

    def __init__(self) -> None:
        self.address = ""
        self.never = asyncio.Event()

    async def refuse(self, _: Message, context: Context) -> Message:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such thing")

    async def fail(self, _: Message, context: Context) -> Message:
        return await context.abort(grpc.StatusCode.DATA_LOSS, "of no interest")

    async def keep_silent(self, _: Message, __: Context) -> Message:
        await self.never.wait()
        return pb.Node()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    server, port = server_at("control", "127.0.0.1", 0)
    answers = {"Refuse": service.refuse, "Fail": service.fail, "KeepSilent": service.keep_silent}
    methods = {name: (answer, pb.ReadNodeRequest) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((unary_service("s", methods),))
    await server.start()
    service.address = f"127.0.0.1:{port}"
    yield service
    service.never.set()
    await server.stop(None)


async def fault(address: str, method: str, deadline_s: float = 20.0) -> str:
    channel = GrpcChannel("it", address, deadline_s)
    with pytest.raises(Unanswered) as caught:
        await channel.ask("s", method, pb.ReadNodeRequest(), pb.Node)
    await channel.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("Refuse", "refused Refuse: no such thing"),
        ("Fail", "failed at Fail: DATA_LOSS"),
        ("Unknown", "is none: what answers there knows no Unknown"),
    ],
)
async def test_what_went_wrong_is_told(service: Service, method: str, told: str) -> None:
    assert await fault(service.address, method) == f"it at {service.address} {told}"


async def test_silence_is_told_with_the_time_that_was_waited(service: Service) -> None:
    assert (
        await fault(service.address, "KeepSilent", 0.2) == f"it at {service.address} gave no answer to KeepSilent within 0.2 s"
    )


async def test_who_cannot_be_reached_is_told(service: Service) -> None:
    assert await fault("127.0.0.1:1", "Refuse") == "it at 127.0.0.1:1 cannot be reached by gRPC"
