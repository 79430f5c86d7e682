"""One process of the experiment: pinned to a core, tied to this process, ended with everything it started."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.overhead.machine import raise_priority
from engine_adapters.launch.tether import tether

_STOP_GRACE_S = 5.0
_POLL_S = 0.1
_LOG_TAIL_BYTES = 1500


class ChildError(Exception):
    """A process did not start. The message quotes the end of its log."""


class Child:
    """Started by the constructor, stopped by leaving the `with` block."""

    def __init__(self, name: str, command: Sequence[str], core: int, log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=tether(),
            )
        raise_priority(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, port: int, limit_s: float, *, body: bytes | None) -> None:
        """Return once `/health` answers 200 and, with a `body`, a chat request too. Raises ChildError."""
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                raise ChildError(f"{self.name} ended with {self._process.returncode}; its log ends with:\n{self._tail()}")
            if _answers(port, "GET", "/health", None) and (
                body is None or _answers(port, "POST", "/v1/chat/completions", body)
            ):
                return
            time.sleep(_POLL_S)
        raise ChildError(f"{self.name} was not ready within {limit_s:g} s; its log ends with:\n{self._tail()}")

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_GRACE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # nothing of the group is left
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")


def _answers(port: int, method: str, path: str, body: bytes | None) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3.0)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
