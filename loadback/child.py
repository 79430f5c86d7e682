"""One process that belongs to this one: its output goes to a log file, and it never outlives its parent.

It knows nothing of what the process does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ChildDied(Exception):
    """A process ended although it should be running. The message holds the end of its log."""


class Child:
    """Started by `start`, ended by `stop`. If the parent dies in any way, the kernel kills the child."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], log: Path, stdin: bytes = b"") -> Child:
        """A session of its own keeps the terminal's Ctrl-C from it: the parent decides in which order things stop."""
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_tether(os.getpid()),
            )
        child = cls(name, process, log)
        await child._send(stdin)
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises `ChildDied` if it has ended."""
        if self._process.returncode is not None:
            raise ChildDied(f"{self.name} ended with status {self._process.returncode}. Its log ends:\n{self.log_tail()}")

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then after `grace_s` SIGKILL to its whole process group."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        finally:
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return  # it has ended already; `check` says how
        finally:
            self._process.stdin.close()


def _tether(parent: int) -> partial[None] | None:
    """What the child runs between fork and exec. Loaded beforehand, since little is safe to call there."""
    if sys.platform != "linux":
        return None
    return partial(_die_with, ctypes.CDLL(None, use_errno=True).prctl, parent)


def _die_with(prctl: ctypes._NamedFuncPointer, parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the kernel was told
        os._exit(1)
