"""Both sides together, with the smallest possible relay between them: what a fault on one side does to the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest
from wire_rig import CHAT, DEADLINE_S, Client, ScriptedEngine, Serve, answer, until

from bench.overhead.passthrough import PassThrough
from engine_adapters.launch.ports import free_ports

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
async def through(engine: ScriptedEngine, serve: Serve) -> AsyncIterator[Client]:
    """A client of a gateway that passes everything to `engine`."""
    relay = PassThrough([await engine.open()])
    client = await (await serve(relay.handle)).connect()
    yield client
    await relay.close()


async def test_body_and_headers_cross_unchanged(engine: ScriptedEngine, through: Client) -> None:
    body = bytes(range(256)) * 2000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 418 I'm a teapot\r\nX-Engine: sg\xffl\r\nKeep-Alive: timeout=5\r\ncontent-length: 3\r\n\r\nhot")

    engine.script = script
    through.post(body, "X-Custom: 1", "Connection: x-hop", "x-hop: 1", "Authorization: Bearer k")
    head, reply = await through.reply()
    assert head.startswith(b"HTTP/1.1 418 ")
    assert b"\r\nx-engine: sg\xffl\r\n" in head
    assert b"keep-alive" not in head
    assert reply == b"hot"
    sent, _, received = engine.requests[0].partition(b"\r\n\r\n")
    assert received == body
    assert sent.split(b"\r\n")[2:] == [b"x-custom: 1", b"authorization: Bearer k", b"content-length: %d" % len(body)]
    assert sent.startswith(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_stream_crosses_event_by_event(engine: ScriptedEngine, through: Client) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(STREAM_HEAD)
        for number in range(50):
            writer.write(chunk(b"data: %d\n\n" % number))
            await next_wanted.wait()
            next_wanted.clear()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await engine.read_request(reader)

    next_wanted = asyncio.Event()
    engine.script = script
    through.post(b"{}")
    for number in range(50):
        assert await through.until(b"data: %d\n\n" % number)
        next_wanted.set()
    assert (await through.until(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("begun", [True, False])
async def test_client_leaves_and_the_engine_knows_at_once(engine: ScriptedEngine, through: Client, begun: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        if begun:
            writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await engine.read_request(reader)

    engine.script = script
    through.post(b"{}")
    if begun:
        await through.until(b"data: 1\n\n")
    await until(lambda: len(engine.requests) == 1)
    await through.close()
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)


async def test_engine_dies_in_mid_stream_and_the_client_gets_no_clean_end(engine: ScriptedEngine, through: Client) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await seen.wait()

    seen = asyncio.Event()
    engine.script = script
    through.post(b"{}")
    await through.until(b"data: 1\n\n")
    seen.set()
    rest = b""
    with contextlib.suppress(ConnectionResetError):
        rest = await through.rest()
    assert b"0\r\n\r\n" not in rest


async def test_engine_that_never_answers_is_502(engine: ScriptedEngine, through: Client) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)

    engine.script = script
    through.post(b"{}")
    head, body = await through.reply()
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"engine_died" in body
    engine.script = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    through.post(b"{}")
    assert (await through.reply())[1] == b"ok"


async def test_slow_reader_holds_the_engine_back(engine: ScriptedEngine, through: Client) -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await engine.read_request(reader)
        writer.write(STREAM_HEAD)
        for _ in range(1000):
            writer.write(chunk(b"z" * 50_000))
            await writer.drain()
            sent += 50_000
        writer.write(b"0\r\n\r\n")
        await engine.read_request(reader)

    engine.script = script
    through.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    through.writer.transport.pause_reading()
    through.post(b"{}")
    await until(lambda: sent > 0)
    settled = 0
    for _ in range(200):  # until the engine has made no progress for a while
        before, _ = sent, await asyncio.sleep(0.02)
        settled = settled + 1 if sent == before else 0
        if settled == 10:
            break
    assert settled == 10
    assert sent < 25_000_000  # what kernel buffers hold, of 50 MB
    through.writer.transport.resume_reading()
    received = 0
    while not (data := await asyncio.wait_for(through.reader.read(2**20), DEADLINE_S)).endswith(b"\r\n0\r\n\r\n"):
        received += data.count(b"z")
    assert received + data.count(b"z") == 50_000_000


@pytest.mark.slow
async def test_sigterm_finishes_streams_and_exits_0(engine: ScriptedEngine) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await more.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    more = asyncio.Event()
    engine.script = script
    origin = await engine.open()
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.overhead.passthrough", str(port), str(origin))
    try:
        client = await connected(port)
        client.post(b"{}")
        await client.until(b"data: 1\n\n")
        os.kill(process.pid, signal.SIGTERM)
        await until(lambda: refuses(port))
        more.set()
        assert (await client.rest()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
        await client.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def connected(port: int) -> Client:
    async with asyncio.timeout(DEADLINE_S):
        for attempt in range(1000):
            try:
                return Client(*await asyncio.open_connection("127.0.0.1", port))
            except OSError:
                await asyncio.sleep(0.02 if attempt < 50 else 0.1)
    raise AssertionError("the server never listened")


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
