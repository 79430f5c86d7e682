"""A real agent CLI while a prefill worker dies under its session: the user notices nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from agent_cli import AgentCli, CliHome
from cli_catalogue import OPENCODE, QWEN
from client_stage import Stage, eventually
from session_evidence import session_turns
from wiretap import tap_of

pytestmark = [pytest.mark.clients, pytest.mark.slow]
LIMIT_S = 120.0
DELAY_MS = 4000.0  # long enough to see a call in flight and kill its worker


@pytest.mark.parametrize("cli", [OPENCODE, QWEN], ids=lambda cli: cli.name)
async def test_a_session_outlives_its_prefill_worker(cli: AgentCli, own_stage: Stage, tmp_path: Path) -> None:
    stage = own_stage
    for worker in ("p0", "p1"):
        await stage.slow_down(worker, calls=100, delay_ms=DELAY_MS)
    async with asyncio.timeout(LIMIT_S), tap_of(stage.port) as tap:
        home = CliHome(cli, tmp_path, tap.url)
        session = asyncio.create_task(home.run("List the files here and tell me what this project is."))
        victim = await kill_under_second_turn(stage)
        run = await session
        assert run.status == 0, run.output
        turns = [turn for turn in await session_turns(tap, stage) if turn.offers_tools]
    assert [turn.record["outcome"] for turn in turns] == ["served"] * len(turns)
    assert [turn.record["tries"] > 1 for turn in turns] == [False, True, *[False] * (len(turns) - 2)]
    assert [turn.kind for turn in turns] == ["new", *["continued"] * (len(turns) - 1)]
    assert len({turn.thread for turn in turns}) == 1
    assert turns[0].record["worker"].startswith(victim)
    assert not [turn for turn in turns[1:] if turn.record["worker"].startswith(victim)]
    assert "hello.py" in turns[-1].tool_results[-1]


async def kill_under_second_turn(stage: Stage) -> str:
    """Waits until the main loop's first turn is served and the next one is with the same worker, and kills that worker."""

    async def called_tool() -> str | None:
        served = [record["worker"] for record in await stage.decisions() if record["tool_calls"]]
        return served[0].partition(">")[0] if served else None

    victim = str(await eventually(called_tool, "the first tool call"))
    await eventually(lambda: stage.inflight(victim), f"a second call on {victim}")
    os.kill(stage.engines[victim].pid, signal.SIGKILL)
    return victim
