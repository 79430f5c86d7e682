"""httpx over the upstream pool: what control calls see of good, bad, slow and absent engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from wire_rig import ScriptedEngine, answer, read_message, until

from router.fleet import control_transport
from router.fleet.control_transport import PooledTransport
from router.wire.upstream import UpstreamPool

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
async def http(pool: UpstreamPool) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=PooledTransport(pool), trust_env=False) as client:
        yield client


async def test_a_get(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()
    engine.script = answer(b"HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    reply = await http.get(f"{origin}/v1/loads?x=1", headers={"authorization": "Bearer k"})
    assert (reply.status_code, reply.json(), reply.headers["x-a"]) == (200, {}, "1")


async def test_what_the_engine_gets(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        await engine.read_request(reader)
        writer.write(OK)

    engine.script = script
    assert (
        await http.post(f"{origin}/abort_request", json={"rid": "r"}, headers={"Authorization": "Bearer k"})
    ).status_code == 200
    assert (await http.get(f"{origin}/a?b=c")).status_code == 200
    post, get = engine.requests
    assert post.startswith(f"POST /abort_request HTTP/1.1\r\nhost: {origin.authority}\r\n".encode())
    assert b"authorization: Bearer k\r\n" in post
    assert post.endswith(b'content-length: 11\r\n\r\n{"rid":"r"}')
    assert get.startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"content-length" not in get
    assert engine.connections == 1


async def test_statuses_are_replies(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()
    engine.script = answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone")
    reply = await http.get(f"{origin}/x")
    assert (reply.status_code, reply.text) == (404, "gone")


async def test_a_connection_that_died_in_the_pool_is_not_noticed(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(OK)
        if engine.connections == 1:
            await read_message(reader)  # and closes without an answer
        else:
            await read_message(reader)

    engine.script = once
    assert (await http.get(f"{origin}/x")).status_code == 200
    assert (await http.get(f"{origin}/x")).status_code == 200
    assert engine.connections == 2


async def test_silence_is_a_timeout(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        await reader.read()
        engine.left.set()

    engine.script = silent
    with pytest.raises(httpx.ReadTimeout):
        await http.get(f"{origin}/x", timeout=0.05)
    await until(engine.left.is_set)


async def test_nobody_there(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()
    await engine.close()
    with pytest.raises(httpx.NetworkError):
        await http.get(f"{origin}/x")


async def test_a_caller_that_gives_up_drops_the_call(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = await engine.open()
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        asked.set()
        await reader.read()
        engine.left.set()

    engine.script = silent
    call = asyncio.create_task(http.get(f"{origin}/x"))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(engine.left.is_set)


async def test_endless_replies_are_bounded(
    http: httpx.AsyncClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_transport, "_MAX_REPLY_BYTES", 1000)
    origin = await engine.open()
    engine.script = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000)
    with pytest.raises(httpx.NetworkError, match="exceeds"):
        await http.get(f"{origin}/x")
