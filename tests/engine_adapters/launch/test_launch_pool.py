"""A pool is started together and always stopped; ports that were taken meanwhile are drawn again, given ones are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_adapters.launch import pool
from engine_adapters.launch.process import EngineProcess, EngineStartError, start_process
from engine_adapters.launch.sglang import SglangSpec

SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
PORT_TAKEN = "import sys; sys.exit('OSError: [Errno 98] Address already in use')"
DEADLINE_S = 30.0

pytestmark = pytest.mark.slow


class FakeEngines:
    """Stands in for `start_sglang`: one script a start, the last one again and again."""

    def __init__(self, *scripts: str) -> None:
        self._scripts = list(scripts)
        self.started: list[EngineProcess] = []

    async def __call__(self, spec: SglangSpec, log_dir: Path) -> EngineProcess:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        command = [sys.executable, "-c", script, str(spec.port)]
        process = await start_process(spec.name, spec.url, command, {}, log_dir / f"{len(self.started)}.log")
        self.started.append(process)
        return process


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeEngines]:
    def use(*scripts: str) -> FakeEngines:
        fake = FakeEngines(*scripts)
        monkeypatch.setattr(pool, "start_sglang", fake)
        return fake

    return use


async def test_a_pool_is_up_inside_and_gone_outside(engines: Callable[..., FakeEngines], tmp_path: Path) -> None:
    fake = engines(SERVES)
    async with pool.launch_pd_pool(tmp_path, tmp_path, deadline_s=DEADLINE_S) as running:
        assert [len(running.prefills), len(running.decodes)] == [2, 1]
        assert all(server.process.alive for server in running.servers)
    assert not [process for process in fake.started if process.alive]


async def test_a_port_that_was_taken_meanwhile_is_drawn_again(engines: Callable[..., FakeEngines], tmp_path: Path) -> None:
    fake = engines(PORT_TAKEN, SERVES)
    async with pool.launch_unified(tmp_path, tmp_path, deadline_s=DEADLINE_S) as server:
        assert server.process.alive
    assert len(fake.started) == 2


async def test_given_ports_are_not_replaced(engines: Callable[..., FakeEngines], tmp_path: Path) -> None:
    fake = engines(PORT_TAKEN)
    with pytest.raises(EngineStartError, match="Address already in use"):
        async with pool.launch_pd_pool(tmp_path, tmp_path, prefills=1, ports=range(19300, 19310), deadline_s=DEADLINE_S):
            pass
    assert len(fake.started) == 2
    assert not [process for process in fake.started if process.alive]


async def test_one_that_dies_for_another_reason_ends_them_all(engines: Callable[..., FakeEngines], tmp_path: Path) -> None:
    fake = engines(SERVES, "import sys; sys.exit('no such model')")
    with pytest.raises(EngineStartError, match="no such model"):
        async with pool.launch_pd_pool(tmp_path, tmp_path, prefills=1, deadline_s=DEADLINE_S):
            pass
    assert len(fake.started) == 2
    assert not [process for process in fake.started if process.alive]


async def test_a_restart_is_a_new_process_on_the_same_port(engines: Callable[..., FakeEngines], tmp_path: Path) -> None:
    engines(SERVES)
    async with pool.launch_unified(tmp_path, tmp_path, deadline_s=DEADLINE_S) as server:
        first = server.process.pid
        await server.restart(DEADLINE_S)
        assert server.process.alive
        assert server.process.pid != first
