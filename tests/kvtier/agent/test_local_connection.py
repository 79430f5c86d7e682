"""What a bare client on the agent's Unix socket can do to it: frames in pieces, in heaps, unread, unfinished."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from agent_rig import SPACE, agent_here, config_of, digests, eventually

from kvtier.agent.agent import Agent
from kvtier.page.status import Status
from kvtier.wire import messages as wire
from kvtier.wire.frames import HEADER_BYTES, pack_frame, unpack_header


class Bare:
    """A connection without manners, for this loop."""

    def __init__(self, agent: Agent) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(agent.config.socket)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def receive(self) -> tuple[int, wire.Reply]:
        header = unpack_header(await self._exactly(HEADER_BYTES))
        return header.call, wire.decode_reply(await self._exactly(header.body_bytes))

    async def ended(self) -> bool:
        return not await self._loop.sock_recv(self._socket, 1)

    def close(self) -> None:
        self._socket.close()

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += await self._loop.sock_recv(self._socket, count - len(data))
        return data


async def greeted(agent: Agent) -> Bare:
    bare = Bare(agent)
    assert isinstance((await bare.receive())[1], wire.Greeting)
    await bare.send(pack_frame(1, wire.encode(wire.Attach(SPACE))))
    assert await bare.receive() == (1, wire.Attached(0))
    return bare


async def test_a_request_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        bare = await greeted(agent)
        for byte in pack_frame(7, wire.encode(wire.Look(0, digests(range(3))))):
            await bare.send(bytes([byte]))
        assert await bare.receive() == (7, wire.Looked(0, 0))
        bare.close()


async def test_requests_that_come_together_are_answered_in_turn_also_behind_one_that_waits(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        writer, bare = await greeted(agent), await greeted(agent)
        await writer.send(pack_frame(2, wire.encode(wire.Reserve(0, digests([5]), 4096))))
        _, reserved = await writer.receive()
        assert isinstance(reserved, wire.Reserved)
        heap: list[wire.Request] = [
            wire.Look(0, digests([5])),
            wire.Acquire(0, digests([5]), 1000, 10_000),
            wire.Look(0, digests([5])),
        ]
        await bare.send(b"".join(pack_frame(10 + number, wire.encode(request)) for number, request in enumerate(heap)))
        assert await bare.receive() == (10, wire.Looked(0, 0))
        await writer.send(pack_frame(3, wire.encode(wire.Commit(reserved.write, b"c" * 16))))
        assert await writer.receive() == (3, wire.Done(Status.OK))
        call, acquired = await bare.receive()
        assert isinstance(acquired, wire.Acquired)
        assert (call, acquired.statuses) == (11, bytes([Status.OK]))
        assert await bare.receive() == (12, wire.Looked(1, 1))
        for each in (writer, bare):
            each.close()


async def test_a_client_that_reads_late_gets_all_and_holds_up_nobody(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        late, other = await greeted(agent), await greeted(agent)
        count = 2000  # answers of some 2 MB, more than sockets hold
        sending = asyncio.create_task(
            late.send(b"".join(pack_frame(2 + n, wire.encode(wire.AskStats())) for n in range(count)))
        )
        await eventually(lambda: agent.listeners.counters.requests > 20, "it has begun to answer")
        await other.send(pack_frame(2, wire.encode(wire.Look(0, digests([1])))))
        assert await other.receive() == (2, wire.Looked(0, 0))
        assert agent.listeners.counters.requests < count
        assert [(await late.receive())[0] for _ in range(count)] == list(range(2, 2 + count))
        await sending
        for each in (late, other):
            each.close()


async def test_a_client_that_stops_in_a_frame_or_reads_nothing_is_left(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path, serve={"stall_ms": 50})) as agent:
        half, deaf, idle = await greeted(agent), await greeted(agent), await greeted(agent)
        frame = pack_frame(2, wire.encode(wire.AskStats()))
        await half.send(frame[:-1])
        assert await half.ended()
        sending = asyncio.create_task(deaf.send(frame * 20_000))
        await eventually(lambda: agent.listeners.open_connections == 1, "both have been left")
        await asyncio.gather(sending, return_exceptions=True)
        await idle.send(frame)  # between frames there is all the time in the world
        assert isinstance((await idle.receive())[1], wire.Stats)
        assert (agent.listeners.counters.crashes, agent.listeners.counters.broken_frames) == (0, 0)
        for each in (half, deaf, idle):
            each.close()


async def test_a_client_that_does_not_read_an_answer_it_waited_for_is_left(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path, serve={"stall_ms": 50})) as agent:
        writer, deaf = await greeted(agent), await greeted(agent)
        await writer.send(pack_frame(2, wire.encode(wire.Reserve(0, digests([0]), 4096))))
        _, reserved = await writer.receive()
        assert isinstance(reserved, wire.Reserved)
        await writer.send(pack_frame(3, wire.encode(wire.Commit(reserved.write, b"c" * 16))))
        await writer.receive()
        await writer.send(pack_frame(4, wire.encode(wire.Reserve(0, digests([1]), 4096))))
        await writer.receive()
        many = digests([1]) + digests([0]) * 10_000  # half a MB of answer
        await deaf.send(pack_frame(2, wire.encode(wire.Acquire(0, many, 60_000, 10_000))))
        await eventually(lambda: agent.listeners.counters.requests == 6, "it waits for the page")
        writer.close()
        await eventually(lambda: agent.listeners.open_connections == 0, "it has been left")
        deaf.close()


async def test_frames_that_no_engine_sends_end_the_connection(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        for noise in (pack_frame(2, wire.encode(wire.AskStats()), 10), pack_frame(2, b"\xc1"), b"\xff" * 64):
            bare = await greeted(agent)
            await bare.send(noise)
            assert await bare.ended()
            bare.close()
        assert (agent.listeners.counters.broken_frames, agent.listeners.counters.crashes) == (3, 0)


async def test_pages_are_not_sent_to_those_who_have_the_memory(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path)) as agent:
        bare = await greeted(agent)
        await bare.send(pack_frame(2, wire.encode(wire.Reserve(0, digests([1]), 4096))))
        _, reserved = await bare.receive()
        assert isinstance(reserved, wire.Reserved)
        await bare.send(pack_frame(3, wire.encode(wire.Commit(reserved.write, b"c" * 16))))
        await bare.receive()
        await bare.send(pack_frame(4, wire.encode(wire.Acquire(0, digests([1]), 1000))))
        _, acquired = await bare.receive()
        assert isinstance(acquired, wire.Acquired)
        await bare.send(pack_frame(5, wire.encode(wire.ReadPages(acquired.lease, 0, 1))))
        assert isinstance((await bare.receive())[1], wire.Refused)
        bare.close()
        await eventually(lambda: agent.store.running_leases == 0, "the connection's end is noticed")
        assert all(page.holds == 0 for page in agent.store.catalog.pages())
