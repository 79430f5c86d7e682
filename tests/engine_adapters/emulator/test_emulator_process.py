"""The worker as a process: it starts by its command line, publishes, and ends with 0 when told to."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest

from engine_adapters.emulator.cli import build_parser, options_of
from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import start_process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_ends_with_zero_even_while_a_reply_hangs(tmp_path: Path, number: signal.Signals) -> None:
    port, kv_port, replay_port, bootstrap_port = free_ports(4)
    words = f"--role prefill --port {port} --kv-port {kv_port} --kv-replay-port {replay_port} --bootstrap-port {bootstrap_port}"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "engine_adapters.emulator", *words.split())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as http:
            await _healthy(http)
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "bootstrap_room": 5}
            hanging = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            while not (await http.get("/_emulator/stats")).json()["active"]:  # noqa: ASYNC110 - a process tells nobody
                await asyncio.sleep(0.02)
            process.send_signal(number)
            async with asyncio.timeout(20.0):
                assert await process.wait() == 0
            await asyncio.gather(hanging, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.slow
async def test_a_taken_port_is_an_error_at_once(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "engine_adapters.emulator", "--port", str(port)]
    first = await start_process("first", f"http://127.0.0.1:{port}", command, {}, tmp_path / "first.log")
    try:
        await first.ready("/health", 30.0)
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        async with asyncio.timeout(30.0):
            assert await second.wait() != 0
    finally:
        await first.stop()


def test_the_command_line_becomes_options() -> None:
    words = "--port 1 --role decode --kv-port 5 --l2-tokens 64 --speed 3 --decode-radix-cache --api-key k"
    options = options_of(build_parser().parse_args(words.split()))
    assert (options.params.role, options.params.host_kv_tokens, options.params.speed) == (EngineRole.DECODE, 64, 3.0)
    assert (options.kv_port, options.kv_replay_port, options.api_key) == (5, 6, "k")
    assert options.params.keeps_cache
    silent = options_of(build_parser().parse_args(["--port", "1"]))
    assert (silent.kv_port, silent.kv_replay_port) == (None, None)


async def _healthy(http: httpx.AsyncClient) -> None:
    for _ in range(300):
        try:
            if (await http.get("/health")).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError("never healthy")
