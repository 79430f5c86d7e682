"""Children log, stop, report an early end, and die with their parent."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from loadback.child import Child, ChildDied

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
PARENT = f"""
import asyncio, pathlib, sys
from loadback.child import Child
async def main():
    child = await Child.start("c", [sys.executable, "-c", {SLEEPER!r}], pathlib.Path(sys.argv[1]))
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


async def start(code: str, folder: Path, stdin: bytes = b"") -> Child:
    return await Child.start("worker", [sys.executable, "-c", code], folder / "log", stdin)


async def wait_for_log(child: Child, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in child.log_tail():
            child.check()
            await asyncio.sleep(0.01)


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while is_running(pid):  # noqa: ASYNC110 - nobody tells of the end of a grandchild
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_stdin_reaches_the_child_and_its_output_the_log(tmp_path: Path) -> None:
    child = await start("import sys; print(sys.stdin.read()[::-1])", tmp_path, b"abc")
    assert await child.wait() == 0
    assert child.log_tail() == "cba"


async def test_an_early_end_is_told_with_the_log(tmp_path: Path) -> None:
    child = await start("raise SystemExit('no such port')", tmp_path)
    await child.wait()
    with pytest.raises(ChildDied, match=r"(?s)worker ended with status 1.*no such port"):
        child.check()


@pytest.mark.slow
@pytest.mark.parametrize("code", [SLEEPER, DEAF], ids=["willing", "deaf to SIGTERM"])
async def test_stop_ends_it(code: str, tmp_path: Path) -> None:
    child = await start(code, tmp_path)
    await wait_for_log(child, "up")
    await child.stop(grace_s=0.2 if code is DEAF else 20)
    assert not is_running(child.pid)


@pytest.mark.slow
async def test_it_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await wait_until_gone(pid)
