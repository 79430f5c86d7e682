"""`loadback bench overhead`: what the gateway adds to a request, beside its rivals, on this machine and in one run."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from bench.overhead.child import ChildError
from bench.overhead.experiment import run_experiment
from bench.overhead.load import LoadError
from bench.overhead.loads import LOADS, Part
from bench.overhead.machine import MachineError
from bench.overhead.native import BuildError
from bench.overhead.peers import PEERS
from bench.overhead.report import as_json, tables
from engine_adapters.launch.ports import NoFreePort

T = TypeVar("T")
_EXPECTED = (BuildError, ChildError, LoadError, MachineError, NoFreePort)
_TABLE_WIDTH = 118


def overhead(
    only: Annotated[str, typer.Option(help="Parts, separated by commas: small, agent, sse1000, rss.")] = "",
    peers: Annotated[str, typer.Option(help=f"Peers, separated by commas: {', '.join(peer.name for peer in PEERS)}.")] = "",
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Of one measurement; the agentic one: 2.5 times that.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, max=10, help="Repeats of what was not quiet; the quietest run counts.")] = 2,
    first_port: Annotated[int, typer.Option(help="Use free ports from here on.")] = 19600,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Measure CPU, latency and memory that a router adds, on mock workers: loadback, smg, sglang-router and nginx.

    Each router runs on core 0, workers and load on core 1; plain and disaggregated (_pd). On a busy machine CPU time still
    holds, latencies do not: `noise` is the share of a core that others took. Rivals are there after scripts/envs/rivals, nginx
    after apt-get install nginx-light. The whole takes about a quarter of an hour.

    [bold]Examples[/bold]

      loadback bench overhead --json

      loadback bench overhead --only small,agent --peers loadback,loadback_pd,direct --rounds 1
    """
    chosen_parts = _chosen("--only", only, {part.value: part for part in Part})
    chosen_peers = _chosen("--peers", peers, {peer.name: peer for peer in PEERS})
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcomes = run_experiment(
            chosen_peers,
            [load for load in LOADS if load.part in chosen_parts],
            seconds=seconds,
            rounds=rounds,
            first_port=first_port,
            tell=_tell,
        )
    except _EXPECTED as error:
        _tell(str(error))
        raise typer.Exit(1) from error
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    for table in tables(outcomes):
        console.print(table)
    if as_json_line:
        print(json.dumps(as_json(outcomes)), flush=True)


def _chosen(option: str, words: str, known: dict[str, T]) -> list[T]:
    """The named ones in the usual order; all when none is named."""
    asked = [word.strip() for word in words.split(",") if word.strip()]
    _check(option, asked, known)
    return [value for name, value in known.items() if not asked or name in asked]


def _check(option: str, asked: Iterable[str], known: dict[str, T]) -> None:
    for name in asked:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM ends the experiment as Ctrl-C does: its processes are stopped on the way out."""
    raise KeyboardInterrupt
