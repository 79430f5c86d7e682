"""The worker as a process: it starts by its command line, publishes, and ends with 0 when told to."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from engine_adapters.emulator.cli import CannotStart, build_parser, options_of, worker_of
from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.launch.ports import free_ports


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
async def test_what_keeps_it_from_starting_is_one_line_and_status_1() -> None:
    command = [sys.executable, "-m", "engine_adapters.emulator", "--port"]
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, told in (
            ([str(port)], f"emulator: cannot listen on 127.0.0.1:{port} (Address already in use): choose another --port"),
            (
                [str(free), "--model-dir", "/nope"],
                "emulator: --model-dir: /nope has no tokenizer.json; give a model folder in Hugging Face layout",
            ),
        ):
            process = await asyncio.create_subprocess_exec(*command, *words, stderr=asyncio.subprocess.PIPE)
            async with asyncio.timeout(60.0):
                _, errors = await process.communicate()
            assert (process.returncode, errors.decode().splitlines()) == (1, [told])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--host nonsense.invalid", "give --host an address of this machine"),
        ("--role prefill --bootstrap-port TAKEN", "choose another --bootstrap-port"),
        ("--kv-port TAKEN", "choose another --kv-port"),
        ("--kv-port 5 --kv-replay-port 5", "--kv-replay-port and --kv-port are both 5"),
        ("--kv-tokens 8", "--kv-tokens: kv_tokens (8) must hold at least one page of 16 tokens"),
    ],
)
def test_options_that_cannot_be_are_named(words: str, told: str) -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = words.replace("TAKEN", str(taken.getsockname()[1])).split()
        with pytest.raises(CannotStart) as refused:
            worker_of(build_parser().parse_args(["--port", str(free), *given]))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "words", ["--port 99999", "--page-size 0", "--l2-tokens -1", "--speed 0", "--decode-base-ms -1", "--decode-base-ms inf"]
)
def test_figures_that_no_worker_has_are_usage_errors(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        build_parser().parse_args(["--port", "1", *words.split()])
    assert refused.value.code == 2
    assert f"error: argument {words.split()[0]}: " in capsys.readouterr().err


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
