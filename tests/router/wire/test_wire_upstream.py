"""The engine side: framing, reuse, deadlines and every way a connection can go wrong, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from pathlib import Path

import pytest
from wire_rig import DEADLINE_S, Recorder, ScriptedEngine, answer, send, settle, until

from router.errors import ConnectFailed, EngineDied, EngineTimeout, StaleConnection
from router.wire.head import build_head
from router.wire.origin import Origin
from router.wire.upstream import UpstreamPool

CERTIFICATE = Path(__file__).parents[2] / "data" / "wire" / "localhost.pem"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n", 503, b""),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n3;x=y\r\n: a\r\n0\r\nx-trailer: 1\r\n\r\n",
            200,
            b"data: a",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
    ids=["length", "empty", "chunked", "interim", "no-content"],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_replies_however_they_arrive(
    engine: ScriptedEngine, pool: UpstreamPool, reply: bytes, status: int, body: bytes, step: int
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await engine.read_request(reader)
            for start in range(0, len(reply), step):
                writer.write(reply[start : start + step])
                await asyncio.sleep(0)

    engine.script = script
    origin = await engine.open()
    for _ in range(2):
        _, sink = send(pool, origin)
        await sink.finished()
        assert (sink.status, sink.body, sink.error) == (status, body, None)
        assert sink.calls[0] == "head"
        assert sink.calls[-1] == "end"
    assert engine.connections == 1


async def test_reply_head_byte_for_byte(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    fields = (
        b"Date: Mon\r\nX-Dup: a\r\nx-dup: b\r\nX-Bytes: caf\xc3\xa9 \xff\r\nX-Empty:\r\nContent-Type: text/plain; charset=UTF-8"
    )
    engine.script = answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\ncontent-length: 0\r\n\r\n")
    _, sink = send(pool, await engine.open())
    await sink.finished()
    assert sink.headers == [
        (b"date", b"Mon"),
        (b"x-dup", b"a"),
        (b"x-dup", b"b"),
        (b"x-bytes", b"caf\xc3\xa9 \xff"),
        (b"x-empty", b""),
        (b"content-type", b"text/plain; charset=UTF-8"),
        (b"content-length", b"0"),
    ]


async def test_until_close(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\npart one, ")
        await writer.drain()
        writer.write(b"part two")

    engine.script = script
    origin = await engine.open()
    _, sink = send(pool, origin)
    await sink.finished()
    assert (sink.body, sink.error) == (b"part one, part two", None)
    assert pool.idle_connections(origin) == 0


async def test_head_has_no_body_whatever_it_declares(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    engine.script = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
    _, sink = send(pool, await engine.open(), body=b"", method=b"HEAD")
    await sink.finished()
    assert sink.calls == ["head", "end"]


async def test_requests_arrive_whole_and_large_parts_are_not_joined(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    origin = await engine.open()
    parts = (b"{" + b"a" * 300_000, b"b" * 200_000, b"}")

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)

    engine.script = script
    head = build_head(b"POST", b"/v1/x", b"w", [(b"x-a", b"1")], sum(map(len, parts)))
    sink = Recorder()
    pool.start(origin, head, parts, sink, first_byte_timeout_s=DEADLINE_S, idle_timeout_s=DEADLINE_S)
    await sink.finished()
    assert engine.requests == [head + b"".join(parts)]


async def test_connections_are_reused_newest_first(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    origin = await engine.open()
    engine.script = answer(OK)
    first = [send(pool, origin) for _ in range(3)]
    for exchange, sink in first:
        await sink.finished()
        assert not exchange.reused
    assert (engine.connections, pool.idle_connections(origin), pool.open_connections) == (3, 3, 3)
    exchange, sink = send(pool, origin)
    assert pool.idle_connections(origin) == 2
    await sink.finished()
    assert exchange.reused
    assert engine.connections == 3


async def test_a_sink_may_start_the_next_request_from_its_last_call(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    origin = await engine.open()
    engine.script = answer(OK)
    _, sink = send(pool, origin)
    chained: list[Recorder] = []
    plain_end = sink.on_end
    sink.on_end = lambda: (chained.append(send(pool, origin)[1]), plain_end())
    await sink.finished()
    assert (await chained[0].finished()).body == b"ok"
    assert engine.connections == 1


@pytest.mark.parametrize("ending", [b"Connection: close\r\n", b""], ids=["close", "surplus"])
async def test_out_of_step_connections_are_not_reused(engine: ScriptedEngine, pool: UpstreamPool, ending: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\n" + ending + b"content-length: 2\r\n\r\nok"
    engine.script = answer(reply if ending else reply + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    origin = await engine.open()
    for _ in range(2):
        _, sink = send(pool, origin)
        await sink.finished()
        assert (sink.body, sink.error) == (b"ok", None)
    assert engine.connections == 2
    assert pool.idle_connections(origin) == 0


async def test_bytes_nobody_asked_for_end_an_idle_connection(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        await asked.wait()
        writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await engine.read_request(reader)

    asked = asyncio.Event()
    engine.script = script
    origin = await engine.open()
    await send(pool, origin)[1].finished()
    asked.set()
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)
    assert pool.idle_connections(origin) == 0


async def test_a_connection_that_died_idle_is_not_used(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)

    engine.script = script  # closes after one answer without having said so
    origin = await engine.open()
    await send(pool, origin)[1].finished()
    await until(lambda: pool.open_connections == 0)
    exchange, sink = send(pool, origin)
    assert (await sink.finished()).error is None
    assert not exchange.reused


async def test_stale_connection_is_told_apart(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    """It closes just as the second request is on its way: no reply byte, connection used before."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        await engine.read_request(reader)

    engine.script = script
    origin = await engine.open()
    await send(pool, origin)[1].finished()
    exchange, sink = send(pool, origin)
    await sink.finished()
    assert exchange.reused
    assert isinstance(sink.error, StaleConnection)
    assert sink.calls == ["error"]


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"",
    ],
    ids=["short-length", "no-last-chunk", "half-head", "nothing"],
)
async def test_death_of_a_fresh_connection(engine: ScriptedEngine, pool: UpstreamPool, reply: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(reply)

    engine.script = script
    _, sink = send(pool, await engine.open())
    await sink.finished()
    assert type(sink.error) is EngineDied
    assert sink.calls[-1] == "error"
    assert "end" not in sink.calls
    assert pool.open_connections == 0


async def test_reset_in_mid_reply(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\npart")
        await seen.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    seen = asyncio.Event()
    engine.script = script
    _, sink = send(pool, await engine.open())
    await asyncio.wait_for(sink.first_piece.wait(), DEADLINE_S)
    seen.set()
    assert type((await sink.finished()).error) is EngineDied


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
    ids=["ssh", "header", "smuggle", "two-lengths", "chunk", "upgrade", "tls"],
)
async def test_garbage_is_an_engine_that_died(engine: ScriptedEngine, pool: UpstreamPool, reply: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(reply)
        await engine.read_request(reader)

    engine.script = script
    _, sink = send(pool, await engine.open())
    await sink.finished()
    assert type(sink.error) is EngineDied
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)


async def test_head_size_is_bounded(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()

    engine.script = script
    _, sink = send(pool, await engine.open())
    await sink.finished()
    assert type(sink.error) is EngineDied
    assert "65536" in str(sink.error)


async def test_nobody_listens(pool: UpstreamPool, closed_port: int) -> None:
    exchange, sink = send(pool, Origin("127.0.0.1", closed_port))
    assert sink.calls == []
    await sink.finished()
    assert type(sink.error) is ConnectFailed
    assert str(closed_port) in str(sink.error)
    assert exchange.done
    assert pool.open_connections == 0


async def test_unknown_host(pool: UpstreamPool) -> None:
    _, sink = send(pool, Origin("host.invalid", 80))
    assert type((await sink.finished()).error) is ConnectFailed


async def test_connect_deadline() -> None:
    """A listener whose backlog is full answers no SYN."""
    pool = UpstreamPool(connect_timeout_s=0.2)
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        _, sink = send(pool, Origin("127.0.0.1", port))
        await sink.finished()
        assert type(sink.error) is ConnectFailed
        assert "0.2 s" in str(sink.error)
    await pool.close()


async def test_first_byte_deadline(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        await engine.read_request(reader)

    engine.script = script
    exchange, sink = send(pool, await engine.open(), first_byte_timeout_s=0.1)
    await sink.finished()
    assert type(sink.error) is EngineTimeout
    assert not exchange.heard
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)


async def test_idle_deadline_counts_from_the_last_byte_and_rests_while_paused(
    engine: ScriptedEngine, pool: UpstreamPool
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await engine.read_request(reader)

    engine.script = script
    exchange, sink = send(pool, await engine.open(), idle_timeout_s=0.1)
    await asyncio.wait_for(sink.first_piece.wait(), DEADLINE_S)
    exchange.pause_reading()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sink.over.wait(), 0.4)
    exchange.resume_reading()
    await sink.finished()
    assert type(sink.error) is EngineTimeout
    assert exchange.heard


async def test_abort_reaches_the_engine_and_silences_the_sink(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await engine.read_request(reader)

    engine.script = script
    exchange, sink = send(pool, await engine.open())
    await asyncio.wait_for(sink.first_piece.wait(), DEADLINE_S)
    exchange.abort()
    exchange.abort()
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)
    await settle()
    assert exchange.done
    assert sink.calls == ["head", "body"]
    assert pool.open_connections == 0


async def test_abort_while_connecting(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    origin = await engine.open()
    exchange, sink = send(pool, origin)
    exchange.abort()
    await until(lambda: pool.open_connections == 0)
    assert sink.calls == []
    assert engine.requests == []


async def test_abort_from_within_a_call(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    engine.script = answer(OK)
    exchange, sink = send(pool, await engine.open())
    sink.on_head = lambda status, headers: (sink.calls.append("head"), exchange.abort())
    await until(lambda: sink.calls == ["head"] and pool.open_connections == 0)
    assert exchange.done


async def test_an_old_exchange_cannot_touch_its_successor(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    engine.script = answer(OK)
    origin = await engine.open()
    old, sink = send(pool, origin)
    await sink.finished()
    _, sink = send(pool, origin)
    old.abort()
    old.pause_reading()
    assert (await sink.finished()).body == b"ok"


async def test_paused_reading_stops_the_engine(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000
        await engine.read_request(reader)

    engine.script = script
    origin = await engine.open()
    exchange, sink = send(pool, origin)
    exchange.pause_reading()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sink.over.wait(), 0.3)
    assert sent < 20_000_000  # kernel buffers, not ours
    assert len(sink.body) == 0
    exchange.resume_reading()
    assert len((await sink.finished()).body) == 50_000_000
    await until(lambda: pool.idle_connections(origin) == 1)


async def test_idle_connections_are_closed_before_the_engine_would(engine: ScriptedEngine) -> None:
    pool = UpstreamPool(idle_s=0.2)
    origin = await engine.open()
    engine.script = answer(OK)
    await send(pool, origin)[1].finished()
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)
    assert (pool.idle_connections(origin), pool.open_connections) == (0, 0)


async def test_connections_are_bounded(engine: ScriptedEngine) -> None:
    pool = UpstreamPool(max_connections=2)
    first, second = await engine.open(), Origin("localhost", 1)
    engine.script = answer(OK)
    second = Origin("localhost", first.port)  # another origin to the pool, the same engine
    await asyncio.gather(*(send(pool, first)[1].finished() for _ in range(2)))
    assert (await send(pool, second)[1].finished()).error is None  # an idle one made room
    assert pool.open_connections == 2
    busy = [send(pool, first), send(pool, first), send(pool, first)]
    errors = [(await sink.finished()).error for _, sink in busy]
    assert sum(type(error) is ConnectFailed for error in errors) == 1
    await pool.close()
    await settle()


async def test_close_fails_what_runs(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        arrived.set()
        await engine.read_request(reader)

    arrived = asyncio.Event()
    engine.script = script
    _, sink = send(pool, await engine.open())
    await asyncio.wait_for(arrived.wait(), DEADLINE_S)
    await pool.close()
    assert type((await sink.finished()).error) is EngineDied


async def test_drop_idle_forgets_one_origin(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    origin = await engine.open()
    engine.script = answer(OK)
    await send(pool, origin)[1].finished()
    pool.drop_idle(origin)
    await until(lambda: pool.open_connections == 0)


async def test_a_broken_sink_breaks_only_its_exchange(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    engine.script = answer(OK)
    origin = await engine.open()
    _, sink = send(pool, origin)

    def broken(data: bytes) -> None:
        raise RuntimeError("broken sink")

    sink.on_body = broken
    await sink.finished()
    assert type(sink.error) is EngineDied
    assert len(reported) == 1
    assert (await send(pool, origin)[1].finished()).body == b"ok"


async def test_a_sink_may_refuse_what_it_gets(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        await engine.read_request(reader)

    engine.script = script
    exchange, sink = send(pool, await engine.open())
    refusal = EngineDied("not an event stream")

    def refuse(data: bytes) -> None:
        raise refusal

    sink.on_body = refuse
    await sink.finished()
    assert sink.error is refusal
    assert exchange.done
    await asyncio.wait_for(engine.left.wait(), DEADLINE_S)


async def test_nodelay_and_probes_are_set(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    engine.script = answer(OK)
    origin = await engine.open()
    await send(pool, origin)[1].finished()
    (connection,) = pool._idle[origin]
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_ipv6(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    try:
        origin = await engine.open("::1")
    except OSError:
        origin = await engine.open()  # a machine without IPv6 loopback: an IPv4-mapped address takes the same path
        origin = Origin("::ffff:127.0.0.1", origin.port)
    _, sink = send(pool, origin)
    assert (await sink.finished()).body == b"ok"


@pytest.mark.slow
async def test_no_cycles_are_left_behind(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    """A finished exchange is freed by its count: nothing of a request waits for the cycle collector."""
    engine.script = answer(OK)
    origin = await engine.open()
    await send(pool, origin)[1].finished()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            exchange, sink = send(pool, origin)
            await sink.finished()
        del exchange, sink
        assert gc.collect() < 20 * 5  # the recorder's own events and waiters, not exchanges
        assert not [thing for thing in gc.get_objects() if type(thing).__name__ == "Exchange"]
    finally:
        gc.enable()


async def test_tls_with_a_known_certificate(engine: ScriptedEngine) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(CERTIFICATE)
    engine.script = answer(OK)
    opened = await engine.open(ssl=served)
    origin = Origin("localhost", opened.port, tls=True)
    pool = UpstreamPool(tls=ssl.create_default_context(cafile=CERTIFICATE))
    for reused in (False, True):
        exchange, sink = send(pool, origin, body=b"x" * 300_000)
        assert (await sink.finished()).body == b"ok"
        assert exchange.reused is reused
    await pool.close()
    await settle()


async def test_tls_with_an_unknown_certificate(engine: ScriptedEngine, pool: UpstreamPool) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(CERTIFICATE)
    opened = await engine.open(ssl=served)
    _, sink = send(pool, Origin("localhost", opened.port, tls=True))
    await sink.finished()
    assert type(sink.error) is ConnectFailed
    assert "certificate" in str(sink.error).lower()
