"""`loadback bench swarm`: agent sessions against any gateway or server that speaks chat completions."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Annotated

import typer

from bench.swarm.plan import Shape, ThreadPlan, plan_swarm
from bench.swarm.swarm import run_swarm
from bench.swarm.turns import TurnRecord, summary


class LineWatcher:
    """One line on stderr for each turn that failed, and nothing else."""

    def on_state(self, plan: ThreadPlan, state: str) -> None:
        """States change too often to be told in lines."""

    def on_turn(self, record: TurnRecord) -> None:
        if record.error:
            print(f"{record.thread} turn {record.number + 1}: {record.error}", file=sys.stderr)


def swarm(
    url: Annotated[str, typer.Option(help="The server, without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="A model that it serves.")] = "tiny-agent",
    sessions: Annotated[int, typer.Option(min=1, max=512, help="Sessions at once.")] = 8,
    turns: Annotated[int, typer.Option(min=1, max=200, help="Model calls of each session.")] = 8,
    subagents: Annotated[int, typer.Option(min=0, max=32, help="Threads of the one burst.")] = 3,
    idle_s: Annotated[float, typer.Option(min=0, help="How long the resuming session idles.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Of what the sessions say.")] = 1,
    api_key: Annotated[str, typer.Option(help="Sent as the client's key.")] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Run agent sessions against a server: append-only threads, tools, one subagent burst, one idle gap.

    [bold]Example[/bold]

      loadback bench swarm --url http://127.0.0.1:8000 --model tiny-agent --sessions 16 --json
    """
    shape = Shape(sessions=sessions, turns=turns, subagents=subagents, idle_s=idle_s)
    plans = plan_swarm(shape, random.Random(seed))
    records = asyncio.run(run_swarm(url.rstrip("/"), model, shape, plans, LineWatcher(), api_key))
    result = summary(url, records)
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<16} {value}")
    raise typer.Exit(1 if result["errors"] else 0)
