"""`loadback bench tiers`: ratios of the node agent's ways to what the machine does without it, in one run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.tiers.experiment import Outcome, Parts, run_experiment
from bench.tiers.local import WrongPages
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError
from kvtier.client.channel import AgentUnavailable

_DECIMALS = 3
_EXPECTED = (EngineStartError, NoFreePort, AgentUnavailable, WrongPages)
NOT_NATIVE = (
    "warning: loadback-hip is not installed, so that all copies were portable: run scripts/envs/hip (needs a C++ compiler)"
)


def tiers(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Of each measurement; the median counts.")] = 9,
    directory: Annotated[
        Path | None, typer.Option(help="Where to put 300 MB on the SSD; a temporary folder if not given.")
    ] = None,
    only: Annotated[str, typer.Option(help=f"Parts, separated by commas: {', '.join(Parts)}.")] = "",
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Measure pages in shared memory, over loopback and from SSD, each beside the bare copy, stream and read; and the index.

    What is compared runs in turn, round by round, so that a busy or shared machine slows both. Takes about a minute.

    [bold]Rows[/bold] (ratios are rates over those of the bare machine, 1 is as fast; by page size in bytes)

      local_put_ratio, local_get_ratio   an engine's pages to and from shared memory, over a flat two-thread copy

      local_ratio, local_ratio_by_cpu    the lower of both; the same by this process's CPU time

      portable_ratio                     local_ratio without the native copies of loadback-hip

      flat_gb_per_s                      what the flat copy did

      native, backing                    whether loadback-hip is installed; what memory the agent got

      loopback_ratio, raw_tcp_gb_per_s   4 MiB pages from another agent, over a bare TCP stream; what that did

      ssd_ratio, device_gb_per_s         1 MiB pages from SSD, over bare reads; what these did

      match_ms, index_mb_per_million     one look-up of a 100k-token prompt, at 1 or 8 workers a node, whichever takes longer;
                                         memory of a million index entries

      control_cpu_ms_per_1000_pages      CPU of the agent to look for, lease and release a thousand pages

      put_control_cpu_ms_per_1000_pages  CPU of the agent to reserve and commit a thousand pages

    [bold]Examples[/bold]

      loadback bench tiers --json

      loadback bench tiers --only local,ssd --rounds 21
    """
    chosen = [word.strip() for word in only.split(",") if word.strip()] or list(Parts)
    if unknown := set(chosen) - set(Parts):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {', '.join(Parts)}", param_hint="--only")
    with tempfile.TemporaryDirectory(prefix="loadback-tiers-", dir=directory) as folder:
        try:
            outcome = run_experiment(Path(folder), [Parts(part) for part in chosen], rounds, _tell)
        except _EXPECTED as error:
            _tell(f"bench tiers: {error}")
            raise typer.Exit(1) from error
    if not outcome.native:
        _tell(NOT_NATIVE)
    Console().print(table(outcome))
    if as_json_line:
        print(json.dumps(as_json(outcome)), flush=True)


def as_json(outcome: Outcome) -> dict[str, object]:
    """What was measured; the rest is absent."""
    shown: dict[str, object] = {}
    if outcome.local:
        shown["local_ratio"] = {str(size): round(ratios.lower, _DECIMALS) for size, ratios in outcome.local.items()}
        shown["local_put_ratio"] = {str(size): round(ratios.put, _DECIMALS) for size, ratios in outcome.local.items()}
        shown["local_get_ratio"] = {str(size): round(ratios.get, _DECIMALS) for size, ratios in outcome.local.items()}
        shown["local_ratio_by_cpu"] = {
            str(size): round(ratios.lower_by_cpu, _DECIMALS) for size, ratios in outcome.local.items()
        }
        shown["portable_ratio"] = {str(size): round(ratios.lower, _DECIMALS) for size, ratios in outcome.portable.items()}
        shown["flat_gb_per_s"] = {str(size): round(ratios.flat_gb_per_s, 1) for size, ratios in outcome.local.items()}
        shown["native"] = outcome.native
        shown["backing"] = outcome.backing
    if outcome.loopback:
        shown["loopback_ratio"] = round(outcome.loopback.ratio, _DECIMALS)
        shown["raw_tcp_gb_per_s"] = round(outcome.loopback.raw_gb_per_s, 2)
    if outcome.ssd:
        shown["ssd_ratio"] = round(outcome.ssd.ratio, _DECIMALS)
        shown["device_gb_per_s"] = round(outcome.ssd.device_gb_per_s, 2)
    if outcome.match_ms is not None and outcome.index_mb_per_million is not None:
        shown["match_ms"] = round(outcome.match_ms, _DECIMALS)
        shown["index_mb_per_million"] = round(outcome.index_mb_per_million, 1)
    if outcome.control_cpu is not None:
        shown["control_cpu_ms_per_1000_pages"] = round(outcome.control_cpu.get_ms, _DECIMALS)
        shown["put_control_cpu_ms_per_1000_pages"] = round(outcome.control_cpu.put_ms, _DECIMALS)
    return shown


def table(outcome: Outcome) -> Table:
    made = Table("", "value", title="the node agent beside the bare machine", title_justify="left")
    for name, value in as_json(outcome).items():
        made.add_row(name, json.dumps(value))
    return made


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
