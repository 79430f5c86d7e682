"""What a bare client on the agent's TCP port can do to it: faults met on its way are told, and nothing of it stays."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_rig import DEADLINE_S, SPACE, agent_here, config_of, digests, eventually

from kvtier.agent.agent import Agent
from kvtier.wire import messages as wire
from kvtier.wire.frames import pack_frame
from kvtier.wire.stream import FrameStream, StreamClosed

RESET = struct.pack("ii", 1, 0)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    async with agent_here(config_of(tmp_path)) as agent:
        yield agent


async def greeted(agent: Agent) -> tuple[FrameStream, socket.socket]:
    sock = socket.create_connection(("127.0.0.1", agent.port))
    stream = FrameStream(sock, 5.0)
    _, body = await stream.receive()
    assert isinstance(wire.decode_reply(body), wire.Greeting)
    await stream.send(1, wire.encode(wire.Attach(SPACE)))
    _, body = await stream.receive()
    assert wire.decode_reply(body) == wire.Attached(0)
    return stream, sock


async def test_a_fault_of_our_own_ends_the_connection_and_is_counted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who asked would wait for an answer that never comes."""

    def broken(*_: object) -> int:
        raise RuntimeError("a fault")

    stream, _ = await greeted(agent)
    monkeypatch.setattr(agent.store, "leading", broken)
    await stream.send(2, wire.encode(wire.Look(0, digests([1]))))
    with pytest.raises(StreamClosed):
        async with asyncio.timeout(DEADLINE_S):
            await stream.receive()
    stream.close()
    assert agent.listeners.counters.crashes == 1
    await eventually(lambda: agent.listeners.open_connections == 0, "the connection has ended")


async def test_who_leaves_before_the_answer_is_no_fault(agent: Agent) -> None:
    untold: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: untold.append(about))
    for _ in range(20):
        _, sock = await greeted(agent)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await asyncio.get_running_loop().sock_sendall(
            sock, b"".join(pack_frame(2 + number, wire.encode(wire.AskStats())) for number in range(200))
        )
        sock.close()
    await eventually(lambda: agent.listeners.open_connections == 0, "all have ended")
    assert (untold, agent.listeners.counters.crashes) == ([], 0)


async def test_a_page_of_more_shards_than_a_model_has_is_refused(agent: Agent) -> None:
    """A bit for each of them would not fit the memory of any host."""
    stream, _ = await greeted(agent)
    await stream.send(2, msgspec.msgpack.encode([2, ["m", "b", "l", 16, "", [0, 1 << 40, 0, 1, 0, 1]]]))
    with pytest.raises(StreamClosed):
        async with asyncio.timeout(DEADLINE_S):
            await stream.receive()
    stream.close()
    assert (agent.listeners.counters.broken_frames, agent.listeners.counters.crashes) == (1, 0)
