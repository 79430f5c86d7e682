"""A link between nodes that is as slow as it is told: a relay whose replies pass a token bucket that all connections share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PIECE = 16 << 10
_BURST_S = 0.05


class Bucket:
    """`take` waits until so many bytes may pass."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_s = 0.0

    async def take(self, size: int) -> None:
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - _BURST_S) + size / self._rate
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


class SlowLink:
    """Relays to one port of this host. `passed_bytes` counts what came back through it."""

    def __init__(self, to_port: int, bytes_per_s: float) -> None:
        self._to_port = to_port
        self._bucket = Bucket(bytes_per_s)
        self._relays: set[asyncio.Task[None]] = set()
        self.passed_bytes = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams call this in a task"
        self._relays.add(task)
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, back_writer, None))
                    both.create_task(self._pass(back_reader, writer, self._bucket))
            finally:
                back_writer.close()
        except* (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the experiment is over
        finally:
            writer.close()
            self._relays.discard(task)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, bucket: Bucket | None) -> None:
        while piece := await source.read(_PIECE):
            if bucket is not None:
                await bucket.take(len(piece))
                self.passed_bytes += len(piece)
            target.write(piece)
            await target.drain()
        target.close()

    def close(self) -> None:
        for task in self._relays:
            task.cancel()


@asynccontextmanager
async def slow_link(to_port: int, bytes_per_s: float) -> AsyncIterator[tuple[SlowLink, int]]:
    """The link and the port that it listens on."""
    link = SlowLink(to_port, bytes_per_s)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    try:
        yield link, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        link.close()
