"""A tethered child dies when its parent is killed, however deaf it is."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
PARENT = f"""
import subprocess, sys
from engine_adapters.launch.tether import tether
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], preexec_fn=tether(), start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.slow
async def test_child_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    assert is_running(pid)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    async with asyncio.timeout(20):
        while is_running(pid):  # noqa: ASYNC110 - nobody tells of the end of a grandchild
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
