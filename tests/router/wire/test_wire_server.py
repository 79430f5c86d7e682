"""Requests on their way in: bodies, headers, pipelining, 100-continue, limits, shutdown; both carriers where both can."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket

import pytest
from wire_rig import CHAT, DEADLINE_S, Serve, until

from router.errors import GatewayError
from router.wire.request import HotRequest
from router.wire.serve import replies_run_s

ECHO_FIELDS = [(b"content-type", b"application/octet-stream")]


def echo(request: HotRequest) -> None:
    request.downstream.respond(200, ECHO_FIELDS, request.body)


async def test_request_as_the_handler_gets_it(serve: Serve) -> None:
    seen: list[HotRequest] = []

    def handler(request: HotRequest) -> None:
        seen.append(request)
        echo(request)

    client = await (await serve(handler)).connect()
    packed = gzip.compress(b'{"model": "m"}')
    client.post(packed, "Content-Encoding: gzip", "X-Dup: a", "x-dup: B c", "X-Bytes: caf\xe9", path=CHAT + "?beta=true&x")
    assert (await client.reply())[1] == packed
    (request,) = seen
    assert (request.method, request.path, request.query, request.body) == ("POST", CHAT, b"beta=true&x", packed)
    assert request.headers == [
        (b"host", b"x"),
        (b"content-encoding", b"gzip"),
        (b"x-dup", b"a"),
        (b"x-dup", b"B c"),
        (b"x-bytes", "caf\xe9".encode()),
        (b"content-length", b"%d" % len(packed)),
    ]
    assert request.client is not None
    assert request.client[0] == "127.0.0.1"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 500_000, 5_000_000])
@pytest.mark.parametrize("split", [False, True], ids=["one-write", "head-apart"])
async def test_bodies_of_any_size(serve: Serve, size: int, split: bool) -> None:
    client = await (await serve(echo)).connect()
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    for _ in range(2):
        if split:
            client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), size))
            await client.writer.drain()
            await asyncio.sleep(0.01)
            client.writer.write(body)
        else:
            client.post(body)
        assert (await client.reply())[1] == body


async def test_chunked_body(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    big = b"y" * 200_000
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n".encode())
    await client.writer.drain()
    client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big))
    assert (await client.reply())[1] == b"abc" + big


@pytest.mark.parametrize("step", [1, 13])
async def test_request_in_drips(serve: Serve, step: int) -> None:
    client = await (await serve(echo)).connect()
    message = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello".encode()
    for start in range(0, len(message), step):
        client.writer.write(message[start : start + step])
        await asyncio.sleep(0)
    assert (await client.reply())[1] == b"hello"


async def test_other_paths_and_methods_go_to_the_application(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    for method, path in (("GET", "/healthz"), ("GET", CHAT), ("POST", CHAT + "/x"), ("POST", "/v1/models")):
        client.writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
        assert (await client.reply())[1] == f"{method} {path}".encode()
        client.post(b"hot")
        assert (await client.reply())[1] == b"hot"


async def test_absolute_target_is_hot_too(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    client.post(b"hot", path=f"http://gateway{CHAT}")
    assert (await client.reply())[1] == b"hot"


async def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    """Hot and ordinary ones mixed, large and small, all in one piece; the handler answers later and out of order."""
    loop = asyncio.get_running_loop()

    def handler(request: HotRequest) -> None:
        loop.call_later(0.02 if request.body.startswith(b"slow") else 0.0, echo, request)

    client = await (await serve(handler)).connect()
    bodies = [b"slow", b"1", b"slow" + b"z" * 300_000, b"2", b"3"]
    for body in bodies:
        client.post(body)
        client.writer.write(b"GET /cold HTTP/1.1\r\nhost: x\r\n\r\n")
    for body in bodies:
        assert (await client.reply())[1] == body
        assert (await client.reply())[1] == b"GET /cold"


async def test_very_many_pipelined_requests(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    for number in range(2000):
        client.post(b"%d" % number)
    for number in range(2000):
        assert (await client.reply())[1] == b"%d" % number


async def test_expect_100_continue(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n".encode())
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b"hello")
    assert (await client.reply())[1] == b"hello"


async def test_body_over_the_limit_is_refused_and_the_sender_can_read_it(serve: Serve) -> None:
    gateway = await serve(echo, max_body_bytes=1000)
    for framing in ("content-length: 3000000", "transfer-encoding: chunked"):
        client = await gateway.connect()
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode())
        body = b"x" * 3_000_000
        client.writer.write(body if "length" in framing else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        head, text = await client.reply()
        assert head.startswith(b"HTTP/1.1 413 ")
        assert b'"code":"body_too_large"' in text
    client = await gateway.connect()
    client.post(b"y" * 1000)
    assert (await client.reply())[1] == b"y" * 1000


async def test_refusal_before_100_continue(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo, max_body_bytes=1000)).connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n".encode())
    head, _ = await client.reply()
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head
    assert await client.rest() == b""


async def test_unknown_transfer_coding_is_refused(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode()
    )
    assert (await client.reply())[0].startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /v1/chat/completions HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["tls", "header", "smuggle", "length"],
)
async def test_garbage_is_answered_400_and_closed(serve_hot: Serve, garbage: bytes) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(garbage)
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_garbage_behind_a_request_breaks_its_reply(serve_hot: Serve) -> None:
    started = asyncio.Event()

    def handler(request: HotRequest) -> None:
        request.downstream.start(200, [])
        request.downstream.write(b"data: 1\n\n")
        started.set()

    client = await (await serve_hot(handler)).connect()
    client.post(b"{}")
    await client.until(b"data: 1\n\n")
    client.writer.write(b"\0\0garbage\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await client.rest()


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
@pytest.mark.parametrize("line", [f"{CHAT} HTTP/1.1\r\nx-filler: ", f"{CHAT}?", "/cold HTTP/1.1\r\nx-filler: ", "/cold?"])
async def test_a_head_without_end_is_refused(serve_hot: Serve, method: str, line: str) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(f"{method} {line}".encode())
    for _ in range(3):
        await client.writer.drain()
        await asyncio.sleep(0.01)
        client.writer.write(b"a" * 30_000)
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    text = await client.rest()
    assert text == b"" if method == "HEAD" else b'"code":"head_too_large"' in text


async def test_a_head_without_end_behind_a_request_breaks_its_reply(serve_hot: Serve) -> None:
    kept: asyncio.Queue[HotRequest] = asyncio.Queue()
    client = await (await serve_hot(kept.put_nowait)).connect()
    client.post(b"{}")
    reply = (await kept.get()).downstream
    reply.start(200, [])
    reply.flush()
    await client.until(b"\r\n\r\n")
    for piece in (b"GET /cold HTTP/1.1\r\nx-filler: ", b"a" * 40_000, b"a" * 40_000):
        client.writer.write(piece)
        await asyncio.sleep(0.01)
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_handler_that_raises(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    def handler(request: HotRequest) -> None:
        if request.body == b"late":
            request.downstream.start(200, [])
            request.downstream.flush()
        raise RuntimeError("boom")

    gateway = await serve(handler)
    client = await gateway.connect()
    client.post(b"early")
    head, text = await client.reply()
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"boom" not in text
    client.post(b"late")
    await client.until(b"\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await client.rest() == b""
    assert gateway.routes.failures == 2
    assert "boom" in capsys.readouterr().out


async def test_handler_may_be_a_coroutine(serve: Serve) -> None:
    async def handler(request: HotRequest) -> None:
        await asyncio.sleep(0)
        if request.body == b"bad":
            raise RuntimeError("boom")
        echo(request)

    client = await (await serve(handler)).connect()
    for body, status in ((b"good", b"200"), (b"bad", b"500"), (b"good", b"200")):
        client.post(body)
        assert (await client.reply())[0].split(b" ")[1] == status


async def test_errors_are_rendered_for_the_path(serve: Serve) -> None:
    def render(path: str, error: GatewayError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        return [(b"x-path", path.encode())], error.message.encode()

    client = await (await serve(echo, max_body_bytes=1, render_error=render)).connect()
    client.post(b"{}")
    head, text = await client.reply()
    assert b"x-path: " + CHAT.encode() in head
    assert text == b"the body exceeds 1 bytes (`listen.max_body_bytes`)"


async def test_client_that_leaves_in_mid_body_reaches_no_handler(serve: Serve) -> None:
    seen: list[HotRequest] = []
    gateway = await serve(seen.append)
    client = await gateway.connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode() + b"x" * 70_000)
    await client.writer.drain()
    await client.close()
    await until(lambda: not gateway.server.server_state.connections)
    assert seen == []


async def test_silent_connections_are_closed(serve_hot: Serve) -> None:
    gateway = await serve_hot(echo, idle_s=0.1)
    fresh, used = await gateway.connect(), await gateway.connect()
    used.post(b"x")
    await used.reply()
    halfway = await gateway.connect()
    halfway.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc".encode())
    for client in (fresh, used, halfway):
        assert await client.rest() == b""


async def test_a_reply_outlives_the_idle_limit(serve_hot: Serve) -> None:
    def handler(request: HotRequest) -> None:
        asyncio.get_running_loop().call_later(0.5, echo, request)

    client = await (await serve_hot(handler, idle_s=0.1)).connect()
    client.post(b"patience")
    assert (await client.reply())[1] == b"patience"


async def test_nodelay_is_set(serve_hot: Serve) -> None:
    gateway = await serve_hot(echo)
    client = await gateway.connect()
    client.post(b"x")
    await client.reply()
    (connection,) = gateway.server.server_state.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_drain_finishes_replies_and_accepts_nothing(serve: Serve) -> None:
    kept: asyncio.Queue[HotRequest] = asyncio.Queue()
    gateway = await serve(kept.put_nowait)
    idle, busy = await gateway.connect(), await gateway.connect()
    idle.post(b"x")
    echo(await kept.get())
    await idle.reply()
    busy.post(b"stream")
    reply = (await kept.get()).downstream
    reply.start(200, [])
    reply.write(b"data: 1\n\n")
    await busy.until(b"data: 1\n\n")
    gateway.server.stop()
    assert await idle.rest() == b""
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", gateway.port)
    reply.write(b"data: 2\n\n")
    reply.finish()
    assert (await busy.rest()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
    await asyncio.wait_for(gateway.serving, DEADLINE_S)


@pytest.mark.parametrize(("drain_s", "replies_s"), [(180.0, 178.0), (20.0, 18.0), (1.0, 0.9)])
def test_the_end_of_the_process_is_within_the_drain(drain_s: float, replies_s: float) -> None:
    assert replies_run_s(drain_s) == pytest.approx(replies_s)


async def test_drain_deadline_breaks_what_is_left(serve_hot: Serve) -> None:
    kept: asyncio.Queue[HotRequest] = asyncio.Queue()
    gateway = await serve_hot(kept.put_nowait, drain_s=0.2)
    client = await gateway.connect()
    client.post(b"x")
    reply = (await kept.get()).downstream
    left = asyncio.Event()
    reply.on_disconnect = left.set
    reply.start(200, [])
    reply.flush()
    await client.until(b"\r\n\r\n")
    gateway.server.stop()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    await asyncio.wait_for(gateway.serving, DEADLINE_S)
    assert left.is_set()


async def test_refusal_waits_for_its_turn(serve: Serve) -> None:
    kept: asyncio.Queue[HotRequest] = asyncio.Queue()
    client = await (await serve(kept.put_nowait, max_body_bytes=10)).connect()
    client.post(b"first")
    client.post(b"far too long " * 1000)
    first = await asyncio.wait_for(kept.get(), DEADLINE_S)
    first.downstream.start(200, [(b"content-length", b"10")])
    first.downstream.write(b"first")
    await client.until(b"\r\n\r\n")
    assert await client.read(5) == b"first"
    first.downstream.write(b"reply")
    first.downstream.finish()
    assert await client.read(5) == b"reply"
    assert (await client.reply())[0].startswith(b"HTTP/1.1 413 ")


async def test_continue_is_asked_for_when_its_turn_comes(serve_hot: Serve) -> None:
    kept: asyncio.Queue[HotRequest] = asyncio.Queue()
    client = await (await serve_hot(kept.put_nowait)).connect()
    client.post(b"first")
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 6\r\n\r\n".encode())
    echo(await asyncio.wait_for(kept.get(), DEADLINE_S))
    assert (await client.reply())[1] == b"first"
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b"second")
    echo(await asyncio.wait_for(kept.get(), DEADLINE_S))
    assert (await client.reply())[1] == b"second"


@pytest.mark.parametrize("size", [0, 5, 300_000])
@pytest.mark.parametrize("split", [False, True], ids=["one-write", "head-apart"])
async def test_an_offer_of_http_2_is_ignored_and_its_body_kept(serve_hot: Serve, size: int, split: bool) -> None:
    """What the JDK's client sends by default."""
    client = await (await serve_hot(echo)).connect()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")
    for _ in range(2):
        if split:
            head = "".join(f"{field}\r\n" for field in offer)
            client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{head}content-length: {size}\r\n\r\n".encode())
            await client.writer.drain()
            await asyncio.sleep(0.01)
            client.writer.write(b"h" * size)
        else:
            client.post(b"h" * size, *offer)
        assert (await client.reply())[1] == b"h" * size
        client.post(b"plain")
        client.post(b"piped", *offer)
        assert (await client.reply())[1] == b"plain"
        assert (await client.reply())[1] == b"piped"


@pytest.mark.parametrize("size", [0, 10, 200_000])
@pytest.mark.parametrize("split", [False, True], ids=["at-once", "split"])
async def test_an_ordinary_request_keeps_its_body_in_spite_of_an_offer(serve_hot: Serve, size: int, split: bool) -> None:
    client = await (await serve_hot(echo)).connect()
    fields = f"host: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\ncontent-length: {size}\r\n\r\n"
    for _ in range(2):
        client.writer.write(f"POST /cold HTTP/1.1\r\n{fields}".encode())
        if split:
            await client.writer.drain()
            await asyncio.sleep(0.01)
        client.writer.write(b"GET /x HTTP/1.1\r\n"[:size].ljust(size))
        assert (await client.reply())[1] == f"POST /cold {size or ''}".strip().encode()
    offer = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    client.writer.write(offer + b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n")
    assert [(await client.reply())[1] for _ in range(2)] == [b"GET /a", b"GET /b"]


@pytest.mark.parametrize("target", ["http://[::1/a", "http://x:99999999/a", "a:1"])
@pytest.mark.parametrize("method", ["GET", "CONNECT", "POST"])
async def test_a_target_that_cannot_be_read_is_answered_400(serve_hot: Serve, method: str, target: str) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_an_offer_with_a_chunked_body_is_refused(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    fields = "connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked"
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode())
    head, text = await client.reply()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-length" in text


@pytest.mark.parametrize(
    ("version", "fields"), [("1.1", ["Connection: close"]), ("1.0", ["Connection: keep-alive"]), ("1.0", [])]
)
async def test_connections_end_when_they_should(serve: Serve, version: str, fields: list[str]) -> None:
    client = await (await serve(echo)).connect()
    client.post(b"last", *fields, version=version)
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert body == b"last"


@pytest.mark.slow
async def test_very_many_heads_in_one_piece(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    client.writer.write(b"GET /cold HTTP/1.1\r\nhost: x\r\n\r\n" * 8000)
    for _ in range(8000):
        assert (await client.reply())[1] == b"GET /cold"


async def test_very_many_empty_lines(serve: Serve) -> None:
    client = await (await serve(echo)).connect()
    client.writer.write(b"\r\n" * 150_000)
    client.post(b"after")
    assert (await client.reply())[1] == b"after"


async def test_very_many_offers_of_http_2_in_one_piece(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    for number in range(3000):
        client.post(b"%d" % number, "connection: upgrade", "upgrade: h2c")
    for number in range(3000):
        assert (await client.reply())[1] == b"%d" % number


@pytest.mark.parametrize("late", [False, True], ids=["at-once", "late"])
async def test_trailers_are_not_headers(serve: Serve, late: bool) -> None:
    seen: list[HotRequest] = []

    def handler(request: HotRequest) -> None:
        seen.append(request)
        echo(request)

    client = await (await serve(handler)).connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n".encode())
    if late:
        await client.writer.drain()
        await asyncio.sleep(0.01)
    client.writer.write(b"0\r\nauthorization: Bearer k\r\nx-a: b\r\n\r\n")
    assert (await client.reply())[1] == b"abc"
    assert seen[0].headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
    client.post(b"next", "x-a: c")
    assert (await client.reply())[1] == b"next"
    assert (b"x-a", b"c") in seen[1].headers


@pytest.mark.parametrize("filler", [b"x-f: " + b"a" * 66_000 + b"\r\n", b"a:\r\n" * 20_000], ids=["large", "many"])
@pytest.mark.parametrize("line", [f"POST {CHAT}", f"POST {CHAT}?{'q' * 10}", "GET /cold"])
async def test_a_head_over_the_limit_is_refused_though_it_came_in_one_piece(serve_hot: Serve, line: str, filler: bytes) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(f"{line} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n".encode() + filler + b"\r\n{}")
    head, text = await client.reply()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in text


async def test_a_long_target_counts_as_head(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    client.post(b"{}", path=f"{CHAT}?{'q' * 66_000}")
    assert (await client.reply())[0].startswith(b"HTTP/1.1 431 ")


async def test_a_large_head_within_the_limit_is_served(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    for _ in range(2):
        client.post(b"{}", "x-f: " + "a" * 60_000)
        assert (await client.reply())[1] == b"{}"


@pytest.mark.parametrize(
    "coding", ["xchunked", "gzip", "chunked, gzip", "gzip, chunked", "gzip\r\ntransfer-encoding: chunked", ""]
)
async def test_other_transfer_codings_are_answered_400(serve_hot: Serve, coding: str) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: {coding}\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode())
    assert (await client.reply())[0].startswith(b"HTTP/1.1 400 ")


async def test_an_unknown_transfer_coding_of_an_ordinary_request_is_answered_400(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(b"POST /cold HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\nabc")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_a_broken_chunk_is_answered_400(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo)).connect()
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    await client.writer.drain()
    await asyncio.sleep(0.01)
    client.writer.write(b"zz\r\n")
    assert (await client.reply())[0].startswith(b"HTTP/1.1 400 ")


async def test_an_offer_with_too_large_a_body_is_refused_at_once(serve_hot: Serve) -> None:
    client = await (await serve_hot(echo, max_body_bytes=1000)).connect()
    fields = "connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 100000000"
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n".encode() + b"x" * 100_000)
    assert (await client.reply())[0].startswith(b"HTTP/1.1 413 ")
