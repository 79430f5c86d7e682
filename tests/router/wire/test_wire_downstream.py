"""One suite for both Downstreams: what a client sees of start, write, finish, abort and respond, on real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest
from wire_rig import DEADLINE_S, Client, Serve

from router.wire.downstream import Downstream
from router.wire.request import HotRequest


class Kept:
    """A handler that keeps its requests for the test to answer."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[HotRequest] = asyncio.Queue()

    def __call__(self, request: HotRequest) -> None:
        self.requests.put_nowait(request)

    async def next(self) -> HotRequest:
        return await asyncio.wait_for(self.requests.get(), DEADLINE_S)


@pytest.fixture
def kept() -> Kept:
    return Kept()


async def open_reply(serve: Serve, kept: Kept, version: str = "1.1") -> tuple[Client, Downstream]:
    gateway = await serve(kept)
    client = await gateway.connect()
    client.post(b"{}", version=version)
    return client, (await kept.next()).downstream


def fields(head: bytes) -> list[bytes]:
    """The head's lines without those that a server adds for itself."""
    own = (b"date:", b"server:")
    return [line for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n") if not line.startswith(own)]


async def test_chunked_reply(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    reply.start(200, [(b"content-type", b"text/event-stream"), (b"x-dup", b"a"), (b"x-dup", b"caf\xc3\xa9")])
    assert (reply.started, reply.done, reply.writable) == (True, False, True)
    reply.write(b"data: 1\n\n")
    head = await client.until(b"\r\n\r\n")
    assert fields(head) == [
        b"HTTP/1.1 200 OK",
        b"content-type: text/event-stream",
        b"x-dup: a",
        b"x-dup: caf\xc3\xa9",
        b"transfer-encoding: chunked",
    ]
    assert await client.until(b"\n\n\r\n") == b"9\r\ndata: 1\n\n\r\n"
    reply.write(b"")
    reply.write(b"data: 2\n\n")
    reply.finish()
    assert await client.until(b"0\r\n\r\n") == b"9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    assert reply.done
    reply.write(b"late")
    reply.finish()
    reply.abort()
    client.post(b"{}")
    assert not (await kept.next()).downstream.done


async def test_declared_length(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    reply.start(201, [(b"content-length", b"6")])
    reply.write(b"abc")
    reply.write(b"def")
    reply.finish()
    head, body = await client.reply()
    assert fields(head) == [b"HTTP/1.1 201 Created", b"content-length: 6"]
    assert body == b"abcdef"


async def test_respond_and_keep_alive(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    for turn in range(3):
        reply.respond(404, [(b"x-turn", b"%d" % turn)], b"gone")
        head, body = await client.reply()
        assert fields(head) == [b"HTTP/1.1 404 Not Found", b"x-turn: %d" % turn, b"content-length: 4"]
        assert body == b"gone"
        client.post(b"{}")
        reply = (await kept.next()).downstream


async def test_flush_sends_the_head_alone(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    reply.start(200, [])
    reply.flush()
    reply.flush()
    assert fields(await client.until(b"\r\n\r\n")) == [b"HTTP/1.1 200 OK", b"transfer-encoding: chunked"]
    reply.finish()
    assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_statuses_without_body(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    reply.start(204, [])
    reply.write(b"dropped")
    reply.finish()
    assert fields(await client.until(b"\r\n\r\n")) == [b"HTTP/1.1 204 No Content"]
    client.post(b"{}")
    (await kept.next()).downstream.respond(200, [], b"next")
    assert (await client.reply())[1] == b"next"


async def test_http_1_0_ends_by_closing(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept, version="1.0")
    reply.start(200, [(b"content-length", b"2")])
    reply.write(b"ok")
    reply.finish()
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert body == b"ok"


@pytest.mark.parametrize("head", [[], [(b"content-length", b"100")]], ids=["chunked", "length"])
async def test_abort_is_never_a_clean_end(serve: Serve, kept: Kept, head: list[tuple[bytes, bytes]]) -> None:
    client, reply = await open_reply(serve, kept)
    called: list[str] = []
    reply.on_disconnect = lambda: called.append("disconnect")
    reply.start(200, head)
    reply.write(b"data: 1\n\n")
    await client.until(b"\n\n")
    reply.abort()
    reply.write(b"late")
    try:
        seen = await client.rest()
    except ConnectionResetError:
        seen = b""
    assert not seen.endswith(b"0\r\n\r\n")
    assert b"late" not in seen
    assert reply.done
    assert called == []


async def test_abort_before_the_head_leaves_no_reply(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    reply.abort()
    try:
        seen = await client.rest()
    except ConnectionResetError:
        seen = b""
    assert b" 200 " not in seen


@pytest.mark.parametrize(("declared", "sent"), [(b"10", b"short"), (b"3", b"longer")])
async def test_a_reply_that_breaks_its_length_is_aborted(serve: Serve, kept: Kept, declared: bytes, sent: bytes) -> None:
    client, reply = await open_reply(serve, kept)
    reply.start(200, [(b"content-length", declared)])
    reply.write(sent)
    reply.finish()
    assert reply.done
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.reply()


async def test_starting_twice_is_a_mistake(serve: Serve, kept: Kept) -> None:
    _, reply = await open_reply(serve, kept)
    with pytest.raises(RuntimeError):
        reply.finish()
    reply.start(200, [])
    with pytest.raises(RuntimeError):
        reply.start(200, [])
    with pytest.raises(RuntimeError):
        reply.respond(200, [], b"")
    reply.finish()


@pytest.mark.parametrize("started", [True, False])
async def test_disconnect_is_told_once(serve: Serve, kept: Kept, started: bool) -> None:
    client, reply = await open_reply(serve, kept)
    left = asyncio.Event()
    calls: list[str] = []
    reply.on_disconnect = lambda: (calls.append("left"), left.set())
    if started:
        reply.start(200, [])
        reply.write(b"data: 1\n\n")
        await client.until(b"\n\n")
    await client.close()
    await asyncio.wait_for(left.wait(), DEADLINE_S)
    assert reply.disconnected
    assert reply.done
    reply.start(200, [])
    reply.write(b"late")
    reply.finish()
    reply.abort()
    assert calls == ["left"]


async def test_slow_reader_turns_writable_off_and_on(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.writer.transport.pause_reading()
    again = asyncio.Event()
    full: list[int] = []
    reply.on_writable = again.set
    reply.on_full = lambda: full.append(written)
    reply.start(200, [])
    written = 0
    while reply.writable:
        reply.write(b"x" * 10_000)
        written += 10_000
        await asyncio.sleep(0)
        assert written < 100_000_000
    await asyncio.sleep(0)
    assert len(full) == 1
    assert not again.is_set()
    client.writer.transport.resume_reading()
    reading = asyncio.create_task(client.until(b"0\r\n\r\n"))
    client.reader._limit = 2 * written
    await asyncio.wait_for(again.wait(), DEADLINE_S)
    assert reply.writable
    reply.finish()
    assert (await reading).count(b"x") == written


async def test_large_pieces_arrive_unharmed(serve: Serve, kept: Kept) -> None:
    client, reply = await open_reply(serve, kept)
    piece = bytes(range(256)) * 4000
    reply.start(200, [(b"content-length", b"%d" % (2 * len(piece)))])
    reply.write(piece)
    reply.write(piece)
    reply.finish()
    assert (await client.reply())[1] == piece * 2
