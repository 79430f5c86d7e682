"""The relay's bucket holds its rate however many take from it, and bytes pass whole."""

from __future__ import annotations

import asyncio

import pytest

import bench.prefetch.slow_link as module
from bench.prefetch.slow_link import Bucket, slow_link


async def test_bytes_pass_whole_and_are_counted() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readexactly(4)
        writer.write(asked * 10_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with slow_link(server.sockets[0].getsockname()[1], 1e9) as (link, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"abcd")
            assert await reader.read(-1) == b"abcd" * 10_000
            assert link.passed_bytes == 40_000
            writer.close()
    finally:
        server.close()


async def test_the_bucket_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    bucket = Bucket(1_000.0)
    for _ in range(4):
        await bucket.take(500)
    assert [round(seconds, 3) for seconds in slept] == [0.45, 0.95, 1.45, 1.95]  # behind a burst of 50 ms
    now[0] += 10.0
    await bucket.take(10)
    assert len(slept) == 4
