"""Fixtures of the wire tests, and both event loops for all of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import uvloop
from wire_rig import HERE, Gateway, ScriptedEngine, Serve, settle, start_gateway

from router.wire.request import HotHandler
from router.wire.upstream import UpstreamPool


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Everything here runs on both loops: transports differ in when and how they write, pause and report."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """uvloop is what production runs on: the other loop's half waits for the full run."""
    for item in items:
        if item.path.is_relative_to(HERE) and "[asyncio" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    scripted = ScriptedEngine()
    yield scripted
    await scripted.close()


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    upstream = UpstreamPool()
    yield upstream
    await upstream.close()
    await settle()


@pytest.fixture(params=["transport", "asgi"])
def carrier(request: pytest.FixtureRequest) -> str:
    """Which Downstream carries replies: the hot protocol's own, or the plain ASGI twin's."""
    return str(request.param)


@pytest.fixture
async def serve(carrier: str) -> AsyncIterator[Serve]:
    running: list[Gateway] = []

    async def start(handler: HotHandler, **options: Any) -> Gateway:
        gateway = await start_gateway(handler, carrier, **options)
        running.append(gateway)
        return gateway

    yield start
    for gateway in running:
        await gateway.close()


@pytest.fixture
async def serve_hot() -> AsyncIterator[Serve]:
    """As `serve`, for what only the hot protocol does."""
    running: list[Gateway] = []

    async def start(handler: HotHandler, **options: Any) -> Gateway:
        running.append(await start_gateway(handler, "transport", **options))
        return running[-1]

    yield start
    for gateway in running:
        await gateway.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, kept from being given to others."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
