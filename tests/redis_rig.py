"""Real Redis servers for tests: one alone, or three that are a cluster. Loopback only, in memory only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from engine_adapters.launch.ports import free_ports
from kvtier.shared_index.redis_link import RedisSettings

_DEADLINE_S = 20.0
_SLOTS = 16384


class RedisServer:
    """`kill` is kill -9; `start` begins again, empty, on the same port."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_ports(1)[0]
        self._folder = folder
        self._options = options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._options]
        self._process = subprocess.Popen(
            ["redis-server", *options], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self.answers, "the server to answer")

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False

    def client(self) -> Redis:
        return Redis(port=self.port)

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()

    def commands_run(self) -> dict[str, int]:
        with self.client() as client:
            stats = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}

    def stop_answering(self) -> None:
        self._process.send_signal(19)

    def go_on(self) -> None:
        self._process.send_signal(18)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_DEADLINE_S)


class RedisCluster:
    """Three masters that share the slots."""

    def __init__(self, folder: Path) -> None:
        self.servers = []
        for number in range(3):
            home = folder / f"node-{number}"
            home.mkdir()
            port, bus = free_ports(2)
            self.servers.append(RedisServer(home, "--cluster-enabled", "yes", "--cluster-port", str(bus), port=port))
        self._join()

    @property
    def url(self) -> str:
        return self.servers[0].url

    def flush(self) -> None:
        for server in self.servers:
            server.flush()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def _join(self) -> None:
        for number, server in enumerate(self.servers):
            with server.client() as client:
                first, last = _SLOTS * number // 3, _SLOTS * (number + 1) // 3 - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                for other in self.servers:
                    bus = other._options[-1]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        until(lambda: all(map(self._agrees, self.servers)), "the cluster to agree")

    def _agrees(self, server: RedisServer) -> bool:
        with server.client() as client:
            info = client.execute_command("CLUSTER", "INFO")
        text = "\n".join(f"{key}:{value}" for key, value in info.items()) if isinstance(info, dict) else info.decode()
        return "cluster_state:ok" in text and "cluster_known_nodes:3" in text


def settings_of(urls: Sequence[str], **more: object) -> RedisSettings:
    return RedisSettings(urls=tuple(urls), name=f"test-{os.urandom(6).hex()}", deadline_ms=2000, retry_ms=1, **more)  # type: ignore[arg-type]


def until(true: object, what: str) -> None:
    assert callable(true)
    deadline_s = time.monotonic() + _DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        time.sleep(0.02)
