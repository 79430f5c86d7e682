"""A wire between two agents that loses, doubles, reorders, spoils or holds up what the far one says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from kvtier.wire import messages as wire
from kvtier.wire.frames import HEADER_BYTES, unpack_header

Send = Callable[[bytes], None]


class Mischief:
    """What happens to the far agent's frames, each whole; the first, its greeting, passes. Override `frame`."""

    def frame(self, data: bytes, send: Send) -> None:
        send(data)


class Twice(Mischief):
    def frame(self, data: bytes, send: Send) -> None:
        send(data)
        send(data)


class Lost(Mischief):
    """Every `nth` one."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self._seen = 0

    def frame(self, data: bytes, send: Send) -> None:
        self._seen += 1
        if self._seen % self._nth:
            send(data)


class Swapped(Mischief):
    """Held until the next one has passed it, or for a moment."""

    def __init__(self) -> None:
        self._held: bytes | None = None

    def frame(self, data: bytes, send: Send) -> None:
        held, self._held = self._held, None
        if held is not None:
            send(data)
            send(held)
            return
        self._held = data
        asyncio.get_running_loop().call_later(0.02, self._let_go, data, send)

    def _let_go(self, data: bytes, send: Send) -> None:
        if self._held is data:
            self._held = None
            send(data)


class Spoilt(Mischief):
    """One bit of every payload."""

    def frame(self, data: bytes, send: Send) -> None:
        header = unpack_header(data[:HEADER_BYTES])
        if header.payload_bytes:
            spoilt = bytearray(data)
            spoilt[-1 - header.payload_bytes // 2] ^= 8
            data = bytes(spoilt)
        send(data)


class HalfOpen(Mischief):
    """Nothing more comes after half of the first payload, and nobody hangs up."""

    def __init__(self) -> None:
        self._stopped = False

    def frame(self, data: bytes, send: Send) -> None:
        if self._stopped:
            return
        self._stopped = bool(unpack_header(data[:HEADER_BYTES]).payload_bytes)
        send(data[: len(data) // 2] if self._stopped else data)


class HeldUp(Mischief):
    """Answers of one kind come when they are let go, and later ones at once."""

    def __init__(self, kind: type[wire.Message]) -> None:
        self._kind = kind
        self._open = False
        self.held: list[tuple[bytes, Send]] = []

    def frame(self, data: bytes, send: Send) -> None:
        body = data[HEADER_BYTES : HEADER_BYTES + unpack_header(data[:HEADER_BYTES]).body_bytes]
        if not self._open and isinstance(wire.decode_reply(body), self._kind):
            self.held.append((data, send))
        else:
            send(data)

    def let_go(self) -> None:
        self._open = True
        for data, send in self.held:
            send(data)


@asynccontextmanager
async def chaos(to: wire.Peer, mischief: Mischief) -> AsyncIterator[wire.Peer]:
    """The same node, to be reached through `mischief`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(to.host, to.port)
        forward = asyncio.create_task(_pass(reader, far_writer))
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                writer.write(await _frame(far_reader))
                while True:
                    mischief.frame(await _frame(far_reader), writer.write)
        finally:
            forward.cancel()
            for each in (writer, far_writer):
                each.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield wire.Peer(to.node, "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(HEADER_BYTES)
    header = unpack_header(head)
    return head + await reader.readexactly(header.body_bytes + header.payload_bytes)
