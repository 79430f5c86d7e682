"""Frame streams over a socket pair: payload in place, cut-off and stalling peers, and closing under a waiter."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Iterator

import pytest

from kvtier.wire.frames import HEADER_BYTES, FrameError, pack_frame
from kvtier.wire.stream import FrameStream, StreamClosed

LONG_S = 30.0


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_payload_lands_where_it_is_wanted(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = (FrameStream(each, LONG_S) for each in sockets)
    big = bytes(range(256)) * 8192  # 2 MiB: more than a socket holds
    sending = asyncio.create_task(theirs.send(7, b"body", [memoryview(big), memoryview(b"tail")]))
    header, body = await ours.receive()
    assert (header.call, body, header.payload_bytes) == (7, b"body", len(big) + 4)
    target = bytearray(len(big))
    await ours.take_into(memoryview(target))
    assert target == big
    await ours.discard(4)
    await sending
    await theirs.send(8, b"")
    assert (await ours.receive())[0].call == 8


async def test_frames_that_arrive_together_are_told_apart(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(sockets[0], LONG_S)
    frames = pack_frame(1, b"a", 3) + b"xyz" + pack_frame(2, b"bb") + pack_frame(3, b"c" * 100_000)
    sending = asyncio.get_running_loop().run_in_executor(None, sockets[1].sendall, frames)
    assert (await ours.receive())[1] == b"a"
    await ours.discard(3)
    assert [(await ours.receive())[1] for _ in range(2)] == [b"bb", b"c" * 100_000]
    await sending


@pytest.mark.parametrize("sent", [b"", pack_frame(1, b"body")[:-1], pack_frame(1, b"")[:7]])
async def test_a_peer_that_goes_is_noticed(sockets: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    ours = FrameStream(sockets[0], LONG_S)
    sockets[1].sendall(sent)
    sockets[1].close()
    with pytest.raises(StreamClosed, match="closed"):
        await ours.receive()


async def test_a_peer_that_stops_in_a_frame_is_given_up(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(sockets[0], stall_s=0.01)
    sockets[1].sendall(pack_frame(1, b"body")[: HEADER_BYTES + 1])
    with pytest.raises(StreamClosed, match="stopped in the middle"):
        await ours.receive()


async def test_a_peer_that_takes_nothing_is_given_up(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(sockets[0], stall_s=0.01)
    with pytest.raises(StreamClosed, match="took nothing"):
        await ours.send(1, b"", [memoryview(bytes(4 << 20))])
    with pytest.raises(StreamClosed):
        await ours.send(2, b"")  # half a frame was sent


async def test_waiting_for_a_frame_has_no_deadline_and_an_abort_ends_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(sockets[0], stall_s=0.01)
    waiting = asyncio.create_task(ours.receive())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    ours.abort()
    with pytest.raises(StreamClosed):
        await waiting
    with pytest.raises(StreamClosed, match="here"):
        await ours.send(1, b"")
    ours.close()


async def test_noise_is_no_frame(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(sockets[0], LONG_S)
    sockets[1].sendall(b"\xff" * 64)
    with pytest.raises(FrameError):
        await ours.receive()


@pytest.fixture
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Only what nothing refers to goes: what is in a circle stays."""
    gc.disable()
    yield
    gc.enable()


async def nobody_holds(memory: bytearray) -> None:
    await asyncio.sleep(0)  # the loop has let go of it as well
    memory.clear()  # BufferError where a view of it is left


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.usefixtures("uncollected")
async def test_a_peer_that_resets_leaves_nobody_with_the_memory_that_was_received_into(
    tcp: tuple[socket.socket, socket.socket],
) -> None:
    ours, memory = FrameStream(tcp[0], LONG_S), bytearray(1 << 20)
    with memoryview(memory) as target:
        receiving = asyncio.create_task(ours.take_into(target))
        tcp[1].sendall(b"x")
        await received(memory)
        reset(tcp[1])
        with pytest.raises(StreamClosed, match="reset"):
            await receiving
    del receiving
    await nobody_holds(memory)


@pytest.mark.usefixtures("uncollected")
async def test_a_peer_that_resets_leaves_nobody_with_the_memory_that_was_sent_from(
    tcp: tuple[socket.socket, socket.socket],
) -> None:
    ours, memory = FrameStream(tcp[0], LONG_S), bytearray(64 << 20)
    with memoryview(memory) as payload:
        sending = asyncio.create_task(ours.send(1, b"", [payload]))
        await asyncio.get_running_loop().run_in_executor(None, tcp[1].recv, 1)
        reset(tcp[1])
        with pytest.raises(StreamClosed, match="lost"):
            await sending
    del sending
    await nobody_holds(memory)


async def received(memory: bytearray) -> None:
    async with asyncio.timeout(LONG_S):
        while not memory[0]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)


async def test_each_byte_of_a_payload_is_seen_once_and_in_order(tcp: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = (FrameStream(each, LONG_S) for each in tcp)
    big = bytes(range(256)) * 16_384
    sending = asyncio.create_task(theirs.send(7, b"body", [memoryview(big), memoryview(b"tail")]))
    await ours.receive()
    for content in (big, b"tail"):
        target, seen = bytearray(len(content)), bytearray()
        await ours.take_into(memoryview(target), seen.extend)
        assert target == seen == content
    await sending


async def test_a_peer_that_trickles_is_waited_for_until_it_stops(tcp: tuple[socket.socket, socket.socket]) -> None:
    """Far fewer bytes than would wake the receiver of a large payload, some within every stall."""
    ours, theirs = FrameStream(tcp[0], stall_s=0.02), tcp[1]
    pieces = [b"3", b"22", b"1"]

    def seen(piece: memoryview) -> None:
        if pieces:
            theirs.sendall(pieces.pop())

    target = bytearray(4 << 20)
    with pytest.raises(StreamClosed, match="stopped in the middle"):
        await ours.take_into(memoryview(target), seen)
    assert not pieces
    assert target[:5] == b"1223\0"


async def test_a_peer_that_goes_within_a_payload_is_noticed_at_once(tcp: tuple[socket.socket, socket.socket]) -> None:
    ours = FrameStream(tcp[0], LONG_S)
    tcp[1].sendall(b"x" * 100)
    tcp[1].close()
    target = bytearray(4 << 20)
    with pytest.raises(StreamClosed, match="closed the connection"):
        await ours.take_into(memoryview(target))
    assert target[:101] == b"x" * 100 + b"\0"
