"""A command that runs until it is told to stop may be told so before it has begun."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from engine_adapters.launch.tether import tether

pytestmark = pytest.mark.slow

LOADED = b" typer\n"  # one of the first packages; some hundred modules follow it
DEADLINE_S = 60.0


async def told_while_loading(number: signal.Signals, *words: str) -> tuple[int, bytes]:
    """Exit status of a command that was sent the signal then, and what it wrote after that."""
    command = [sys.executable, "-X", "importtime", "-m", "loadback", *words]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, preexec_fn=tether())
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while not (await process.stderr.readline()).endswith(LOADED):
            pass
        process.send_signal(number)
        rest = await process.stderr.read()
        return await process.wait(), rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["serve", "up", "agent"])
async def test_it_ends_with_0_and_without_a_word(command: str, number: signal.Signals) -> None:
    status, rest = await told_while_loading(number, command)
    assert status == 0
    assert not [line for line in rest.splitlines() if not line.startswith(b"import time:")]


async def test_what_has_an_end_of_its_own_did_not_come_to_it() -> None:
    for words in (["doctor"], ["serve", "--check"]):
        status, _ = await told_while_loading(signal.SIGTERM, *words)
        assert status == -signal.SIGTERM
