"""Real agent CLIs, as their users configure them, through the gateway: sessions of several turns with tools, then resumed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from agent_cli import AgentCli, CliHome
from cli_catalogue import EVERY_CLI, OTHER_DIALECTS
from client_stage import Stage
from session_evidence import SessionTurn, session_turns
from wiretap import tap_of

pytestmark = [pytest.mark.clients, pytest.mark.slow]
LIMIT_S = 120.0
PAGE_TOKENS = 16


@pytest.mark.parametrize("cli", [*EVERY_CLI, *OTHER_DIALECTS], ids=lambda cli: cli.name.replace(" ", "-"))
async def test_a_session_with_tools_keeps_its_thread(cli: AgentCli, shared_stage: Stage, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), tap_of(shared_stage.port) as tap:
        home = CliHome(cli, tmp_path, tap.url)
        run = await home.run("List the files here and tell me what this project is.")
        assert run.status == 0, run.output
        turns = await session_turns(tap, shared_stage)
        first = check_calls(cli, turns, run.output)
        check_thread(first, begins="new")
        if cli.resume is not None:
            run = await home.run("Look once more: has anything changed?", resumed=True)
            assert run.status == 0, run.output
            turns = await session_turns(tap, shared_stage)
            whole = check_calls(cli, turns, run.output)
            check_resumed(cli, first, whole[len(first) :])
        threads = await shared_stage.threads()
        main = threads[first[0].thread]
        assert main["parent"] is None
        assert main["positions"] > len(first)


def check_calls(cli: AgentCli, turns: Sequence[SessionTurn], output: str) -> list[SessionTurn]:
    """Every call was served at the first try and answered in full; returns the main loop's: those that offer tools."""
    assert {turn.exchange.path for turn in turns} == {cli.path}
    for turn in turns:
        headers, record = turn.exchange.reply.headers, turn.record
        assert (turn.exchange.status, record["outcome"], record["tries"]) == (200, "served", 1), (output, record)
        assert turn.kind != "retry"
        assert re.fullmatch(r"p[01]>d0", headers["x-loadback-worker"])
        assert headers["x-loadback-worker"] == record["worker"]
        assert headers["x-loadback-thread"] == turn.thread
        assert float(headers["x-loadback-predicted-ms"]) > 0
        assert record["finish_reason"]
    return [turn for turn in turns if turn.offers_tools]


def check_thread(turns: Sequence[SessionTurn], *, begins: str) -> None:
    """One thread, recognised each time, served from its cache; the tool that the model called was run and told back."""
    assert len(turns) >= 3
    assert len({turn.thread for turn in turns}) == 1
    assert [turn.kind for turn in turns] == [begins, *["continued"] * (len(turns) - 1)]
    check_cache(turns)
    assert "hello.py" in turns[-1].tool_results[-1]
    assert len(turns[-1].tool_results) == len(turns[0].tool_results) + len(turns) - 1


def check_cache(turns: Sequence[SessionTurn]) -> None:
    """Each later turn finds all of the turn before it, but for the last page and what its client words anew."""
    for before, turn in pairwise(turns):
        assert before.prompt_tokens - 2 * PAGE_TOKENS <= turn.cached_tokens < turn.prompt_tokens, turn.record


def check_resumed(cli: AgentCli, first: Sequence[SessionTurn], later: Sequence[SessionTurn]) -> None:
    """The same thread goes on in another process, unless the client rewrites its history then."""
    if cli.resume_rewrites:
        check_thread(later, begins="new")
        return
    check_thread(later, begins="continued")
    assert later[0].thread == first[0].thread
    check_cache([first[-1], later[0]])
