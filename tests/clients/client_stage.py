"""An emulated 2P1D pool behind a gateway, as `loadback up` starts them, and what its admin API tells."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from engine_adapters.launch.ports import free_ports

_STOP_S = 60.0
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Stage:
    port: int
    engines: dict[str, Engine]

    async def decisions(self) -> list[dict[str, Any]]:
        """Finished turns, oldest first."""
        return await self._admin("decisions?limit=1000", "decisions")

    async def threads(self) -> dict[str, dict[str, Any]]:
        return {thread["id"]: thread for thread in await self._admin("threads?limit=1000", "threads")}

    async def inflight(self, worker: str) -> int:
        return next(int(row["inflight"]) for row in await self._admin("workers", "workers") if row["id"] == worker)

    async def slow_down(self, worker: str, calls: int, delay_ms: float) -> None:
        """Each of the next calls of this worker starts its reply late."""
        fault = {"kind": "slow", "count": calls, "delay_ms": delay_ms}
        async with httpx.AsyncClient() as http:
            (await http.post(f"{self.engines[worker].url}/_emulator/fault", json=fault)).raise_for_status()

    async def _admin(self, path: str, key: str) -> list[dict[str, Any]]:
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}/admin/{path}")
        answer.raise_for_status()
        rows = answer.json()[key]
        assert isinstance(rows, list)
        return rows


@contextmanager
def running_stage() -> Iterator[Stage]:
    port = free_ports(1, first=19820, last=19899)[0]
    command = [sys.executable, "-m", "loadback", "up", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Stage(port, _engines(process))
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_S)


def _engines(process: subprocess.Popen[str]) -> dict[str, Engine]:
    """From what it prints when all of them answer; it ends by itself when they do not."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if "Ctrl-C stops everything" in line:
            break
    found = re.findall(r"^(\w+) +(http://\S+) +pid (\d+)$", text, re.MULTILINE)
    assert len(found) == 3, text
    return {name: Engine(name, url, int(pid)) for name, url, pid in found}


async def eventually(condition: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """The first true answer of an async function."""
    try:
        async with asyncio.timeout(limit_s):
            while not (answer := await condition()):  # noqa: ASYNC110 - another process, nothing to wait on
                await asyncio.sleep(_ASK_AGAIN_S)
    except TimeoutError as error:
        raise AssertionError(f"{what} did not come within {limit_s:.0f} s") from error
    return answer
