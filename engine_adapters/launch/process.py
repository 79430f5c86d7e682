"""One engine server as a child process: started in a group of its own, awaited, ended with everything it spawned; it never
outlives the process that started it.

Knows nothing of any engine but that it answers 200 on a readiness URL.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

READY_POLL_S = 0.5
STOP_GRACE_S = 5.0
LOG_TAIL_BYTES = 2000

DROPPED_VARIABLES = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""Without compiled files an engine starts half a minute later; a foreign PYTHONPATH would reach into its environment."""


_GUARDED = ("sh", "-c", 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL 0) & exec 3<&- </dev/null; exec "$@"', "guard")
"""Runs a command beside a guard that ends the whole group when our end of its input closes, that is when we are gone.

Engines start schedulers and detokenizers that outlive a killed server, so that tying the server alone to us would not do.
"""


class EngineStartError(Exception):
    """The engine died or was not ready in time. The message names the log and quotes its end."""

    def __init__(self, message: str, *, port_taken: bool = False) -> None:
        super().__init__(message)
        self.port_taken = port_taken  # it died because somebody else listens where it wanted to


class EngineProcess:
    """A running engine server. Owned by whoever started it: `stop` must be awaited, also after a failure."""

    def __init__(self, name: str, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.url = url
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ready(self, path: str, deadline_s: float) -> None:
        """Return once `url + path` answers 200. Raises `EngineStartError` after `deadline_s` or when the process has ended."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._answers(self.url + path)
        except TimeoutError as error:
            raise EngineStartError(f"{self.name} was not ready within {deadline_s:g} s; {self._tail()}") from error

    async def _answers(self, url: str) -> None:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as http:
            while self.alive:
                try:
                    if (await http.get(url)).status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                await asyncio.sleep(READY_POLL_S)
        taken = b"address already in use" in self.log.read_bytes().lower()
        message = f"{self.name} ended with {self._process.returncode} before it was ready; {self._tail()}"
        raise EngineStartError(message, port_taken=taken)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to end, then end the whole group: engines leave schedulers and detokenizers behind."""
        if self.alive:
            self._signal(signal.SIGINT)
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                pass  # what is left is ended below
        await self.kill()

    async def kill(self) -> None:
        """End the whole group at once, as a crash would."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # nothing of the group is left
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        return f"{self.log} ends with:\n" + self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


async def start_process(name: str, url: str, command: Sequence[str], variables: Mapping[str, str], log: Path) -> EngineProcess:
    """Start `command` with `variables` added to the inherited environment; its output goes to `log`."""
    unset = [word for variable in DROPPED_VARIABLES for word in ("-u", variable)]
    assignments = [f"{key}={value}" for key, value in variables.items()]
    descriptor = _open_log(log)
    try:
        process = await asyncio.create_subprocess_exec(
            *_GUARDED,
            "env",
            *unset,
            *assignments,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    return EngineProcess(name, url, process, log)


def _open_log(log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
