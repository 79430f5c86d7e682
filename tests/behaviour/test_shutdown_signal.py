"""SIGTERM in the middle of a stream, on the real command in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from fake_engine import MODEL, FakeEngine, Script
from gateway_stage import PD
from raw_client import End, send
from waiting import DEADLINE_S

from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.tether import tether

pytestmark = pytest.mark.slow

BODY = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}]}
PORTS = (19650, 19699)


class GatewayProcess(NamedTuple):
    process: asyncio.subprocess.Process
    port: int


@pytest.fixture
async def engine(kind: str) -> AsyncIterator[FakeEngine]:
    """The one that answers clients."""
    engine = FakeEngine("decode" if kind == PD else "null")
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def pool(engine: FakeEngine, kind: str) -> AsyncIterator[dict[str, Any]]:
    """Its pool, with a prefill worker where it takes one."""
    if kind != PD:
        yield {"engine": "sglang", "unified": [{"url": engine.url}]}
        return
    prefill = FakeEngine("prefill", rooms=engine.rooms)
    await prefill.open()
    yield {"engine": "sglang", "prefill": [{"url": prefill.url}], "decode": [{"url": engine.url}]}
    await prefill.close()


@pytest.fixture
async def gateway(pool: dict[str, Any], tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    port = free_ports(1, *PORTS)[0]
    tree = {"listen": {"port": port}, "pools": [pool], "polls": {"discover_s": 0.05}}
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "loadback", "serve", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(*command, preexec_fn=tether())
    await ready(port)
    yield GatewayProcess(process, port)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def ready(port: int) -> None:
    async with asyncio.timeout(30.0):
        while True:
            with suppress(ConnectionRefusedError):
                if (await (await send(port, b"", "/readyz", method="GET")).finish()).status == 200:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stream_outlives_the_signal(gateway: GatewayProcess, engine: FakeEngine, number: signal.Signals) -> None:
    engine.script = Script(events=9, stay_after=3)
    call = await send(gateway.port, BODY)
    await call.until_body(b"t2")
    gateway.process.send_signal(number)
    await refuses_connections(gateway.port)
    assert gateway.process.returncode is None
    engine.go()
    await call.finish()
    assert (call.end, call.events[-1]) == (End.CLEAN, b"data: [DONE]")
    assert call.body.count(b"data: ") == 10
    async with asyncio.timeout(DEADLINE_S):
        assert await gateway.process.wait() == 0


async def test_an_idle_gateway_ends_at_once(gateway: GatewayProcess) -> None:
    gateway.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        assert await gateway.process.wait() == 0


async def refuses_connections(port: int) -> None:
    """Return once new connections are refused."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:  # refused, or reset while the listener closes
                return
            writer.close()
