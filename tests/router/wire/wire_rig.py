"""What the wire tests are built from: an engine that follows a script, a raw client, a sink that records, a running gateway."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from router.errors import EngineError
from router.wire.asgi import HotAsgi
from router.wire.head import Header, build_head
from router.wire.origin import Origin
from router.wire.request import HotHandler
from router.wire.routes import HotRoutes
from router.wire.serve import DrainingServer, build_server
from router.wire.upstream import UpstreamPool

HERE = Path(__file__).parent
DEADLINE_S = 10.0
CHAT = "/v1/chat/completions"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Recorder:
    """A reply sink that keeps everything and can be waited for."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.pieces: list[bytes] = []
        self.error: EngineError | None = None
        self.calls: list[str] = []
        self.head = asyncio.Event()
        self.first_piece = asyncio.Event()
        self.over = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.calls.append("head")
        self.status, self.headers = status, headers
        self.head.set()

    def on_body(self, data: bytes) -> None:
        self.calls.append("body")
        self.pieces.append(data)
        self.first_piece.set()

    def on_end(self) -> None:
        self.calls.append("end")
        self.over.set()

    def on_error(self, error: EngineError) -> None:
        self.calls.append("error")
        self.error = error
        self.over.set()

    async def finished(self) -> Recorder:
        await asyncio.wait_for(self.over.wait(), DEADLINE_S)
        return self


class ScriptedEngine:
    """A TCP server whose every connection runs `script`; `left` is set when a client closes or resets one."""

    def __init__(self) -> None:
        self.script: Script = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str = "127.0.0.1", **options: Any) -> Origin:
        self._server = await asyncio.start_server(self._serve, host, 0, **options)
        port = self._server.sockets[0].getsockname()[1]
        return Origin(host, port, tls="ssl" in options)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        """One request with a content-length body; raises IncompleteReadError when the client leaves."""
        request = await read_message(reader)
        self.requests.append(request)
        return request

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")), 0)
    return head + await reader.readexactly(length)


def answer(reply: bytes) -> Script:
    """Answer every request with these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_message(reader)
            writer.write(reply)
            await writer.drain()

    return script


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that has no event of its own."""
    async with asyncio.timeout(DEADLINE_S):
        for _ in itertools.repeat(None):
            if condition():
                return
            await asyncio.sleep(0.002)


async def settle() -> None:
    """Let transports that were aborted report so."""
    for _ in range(5):
        await asyncio.sleep(0)


def send(pool: UpstreamPool, origin: Origin, body: bytes = b"{}", method: bytes = b"POST", **deadlines: float) -> Any:
    """Start one plain request; (exchange, recorder)."""
    sink = Recorder()
    head = build_head(method, b"/v1/x", origin.authority.encode(), [], len(body))
    limits = {"first_byte_timeout_s": DEADLINE_S, "idle_timeout_s": DEADLINE_S, **deadlines}
    return pool.start(origin, head, (body,) if body else (), sink, **limits), sink


class Client:
    """A raw client: bytes out, bytes in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def sock(self) -> Any:
        return self.writer.get_extra_info("socket")

    def post(self, body: bytes, *fields: str, path: str = CHAT, version: str = "1.1") -> None:
        head = "".join(f"{field}\r\n" for field in fields)
        self.writer.write(f"POST {path} HTTP/{version}\r\nhost: x\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), DEADLINE_S)

    async def until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), DEADLINE_S)

    async def rest(self) -> bytes:
        """Everything up to a clean end; raises ConnectionResetError on a reset."""
        return await asyncio.wait_for(self.reader.read(), DEADLINE_S)

    async def reply(self) -> tuple[bytes, bytes]:
        """(head, body) of one reply with a content-length."""
        head = await self.until(b"\r\n\r\n")
        length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        return head, await self.read(length)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Gateway:
    """A server with one handler on the hot path, on an own port."""

    def __init__(self, server: DrainingServer, routes: HotRoutes, port: int, serving: asyncio.Task[None]) -> None:
        self.server = server
        self.routes = routes
        self.port = port
        self.serving = serving
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for _ in range(2):
            self.server.stop()
        await asyncio.wait_for(self.serving, DEADLINE_S)


async def ordinary(scope: Any, receive: Any, send: Any) -> None:
    """The cold application: says what it was asked, and how long the body was if there was one."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    text = f"{scope['method']} {scope['path']} {size or ''}".strip().encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


Serve = Callable[..., Awaitable[Gateway]]


async def start_gateway(handler: HotHandler, carrier: str, **options: Any) -> Gateway:
    drain_s = options.pop("drain_s", 5.0)
    routes = HotRoutes(handler, [CHAT], **options)
    cold = HotRoutes(handler, [])  # nothing is hot for the protocol: all goes through ASGI
    app = HotAsgi(ordinary, routes) if carrier == "asgi" else ordinary
    started = asyncio.Event()
    hot = cold if carrier == "asgi" else routes
    server = build_server(app, hot, port=0, lifespan="off", drain_s=drain_s, on_started=started.set)
    serving = asyncio.create_task(server.serve())
    await asyncio.wait_for(started.wait(), DEADLINE_S)
    return Gateway(server, routes, server.port, serving)
