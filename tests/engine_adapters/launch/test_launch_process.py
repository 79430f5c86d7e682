"""A child server is awaited, and ended with everything that it started."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from engine_adapters.launch.ports import NoFreePort, free_ports
from engine_adapters.launch.process import EngineProcess, EngineStartError, start_process

SERVER = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ.get("GREETING", "").encode())
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEADLINE_S = 30.0


async def start(tmp_path: Path, script: str = SERVER) -> EngineProcess:
    (port,) = free_ports(1, 19300, 19399)
    command = [sys.executable, "-c", script, str(port)]
    return await start_process(
        "server", f"http://127.0.0.1:{port}", command, {"GREETING": "hi"}, tmp_path / "logs" / "server.log"
    )


def child_of(process: EngineProcess) -> int:
    return int(process.log.read_text().split()[1])


def is_running(pid: int) -> bool:
    """Neither gone nor only waiting for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_is_ready_and_ends_with_its_children(tmp_path: Path, how: str) -> None:
    process = await start(tmp_path)
    await process.ready("/", DEADLINE_S)
    child = child_of(process)
    assert is_running(child)
    await (process.stop() if how == "stop" else process.kill())
    assert not process.alive
    async with asyncio.timeout(DEADLINE_S):
        while is_running(child):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from engine_adapters.launch.process import start_process
async def main():
    script, port, log = sys.argv[1:]
    command = [sys.executable, "-c", script, port]
    process = await start_process("server", "http://127.0.0.1:" + port, command, {}, Path(log))
    await process.ready("/", 30.0)
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_nothing_outlives_a_launcher_that_was_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1, 19300, 19399)
    log = tmp_path / "server.log"
    arguments = (sys.executable, "-c", LAUNCHER, SERVER, str(port), str(log))
    launcher = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert launcher.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        server = int(await launcher.stdout.readline())
        child = int(log.read_text().split()[1])
        assert is_running(server)
        assert is_running(child)
        launcher.kill()
        await launcher.wait()
        while is_running(server) or is_running(child):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_server_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = await start(tmp_path, "import sys; sys.exit('no such model')")
    with pytest.raises(EngineStartError, match=r"server ended with 1 .*\n.*no such model"):
        await process.ready("/", DEADLINE_S)
    await process.stop()


@pytest.mark.slow
async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    process = await start(tmp_path, "import time; time.sleep(600)")
    try:
        with pytest.raises(EngineStartError, match="not ready within"):
            await process.ready("/", 0.2)
    finally:
        await process.stop(grace_s=0.1)
    assert not process.alive


def test_free_ports_are_distinct_and_within_the_range() -> None:
    ports = free_ports(3, 19300, 19399)
    assert len(set(ports)) == 3
    assert all(19300 <= port <= 19399 for port in ports)


def test_a_range_without_enough_ports_says_so() -> None:
    with pytest.raises(NoFreePort, match=r"19300\.\.19300"):
        free_ports(2, 19300, 19300)


def test_this_process_is_seen_as_running() -> None:
    assert is_running(os.getpid())
