"""A client that reads slowly slows its engine down, costs no memory, and gets every byte in the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from fake_engine import MODEL, Script
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import CHAT, Call, End
from waiting import until

pytestmark = pytest.mark.slow

EVENT_BYTES = 64 * 1024
EVENTS = 512  # 32 MB in all
BUFFERED_BYTES = 16 * 1024 * 1024  # kernel buffers on both sides of the gateway, and what one read brings


async def test_slow_reader(stage: Stage) -> None:
    stage.script(stage.replying, Script(events=EVENTS, event_bytes=EVENT_BYTES))
    call = await send_with_small_buffers(stage.port)
    await until(lambda: any(engine.active for engine in stage.replying), "the engine streams")
    engine = next(engine for engine in stage.replying if engine.calls)
    await until(lambda: engine.sent_bytes > EVENT_BYTES, "the engine has sent something")
    sent = await stalled(lambda: engine.sent_bytes)
    assert sent < BUFFERED_BYTES < EVENTS * EVENT_BYTES
    await call.finish(within_s=120.0)  # 32 MB in pieces of 16 KiB
    assert (call.status, call.end) == (200, End.CLEAN)
    assert call.body.count(b"data: ") == EVENTS + 1
    assert len(call.body) > EVENTS * EVENT_BYTES
    await stage.settled()


async def stalled(sent_bytes: Callable[[], int]) -> int:
    """How much was sent when nothing more has gone out for a while."""
    seen, unchanged = -1, 0
    while unchanged < 20:
        sent = sent_bytes()
        unchanged = unchanged + 1 if sent == seen else 0
        seen = sent
        await asyncio.sleep(0.005)
    return seen


async def send_with_small_buffers(port: int) -> Call:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=16 * 1024)
    body = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"x"}]}' % MODEL.encode()
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    await writer.drain()
    return Call(reader, writer)


async def test_a_client_that_never_reads_gives_its_place_back(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, timeouts={"keep_alive_s": 0.05, "client_stall_s": 0.2})
    stage.script(stage.replying, Script(events=EVENTS, event_bytes=EVENT_BYTES))
    call = await send_with_small_buffers(stage.port)
    await until(lambda: any(engine.active for engine in stage.replying), "the engine streams")
    await stage.settled()
    await call.finish()
    assert call.end is End.BROKEN
