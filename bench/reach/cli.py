"""`loadback bench reach`: whether a prefix follows a session to another worker and survives the death of the first."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.reach.experiment import Outcome, Plan, run_experiment
from bench.reach.pair import EngineFailed
from engine_adapters.launch.environments import EngineNotInstalled
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError

_MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
_EXPECTED = (EngineFailed, EngineNotInstalled, EngineStartError, NoFreePort)


def reach(
    engine: Annotated[str, typer.Option(help="Which real engine: sglang.")] = "sglang",
    prompts: Annotated[int, typer.Option(min=1, max=10_000, help="Different prompts that travel.")] = 200,
    sessions: Annotated[int, typer.Option(min=1, max=1000, help="Sessions that migrate with every turn.")] = 12,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Compute prompts on one real prefill server and restore them on another, through the node agent; kill all; restore again.

    Then let sessions migrate between the two prefill servers at every turn, with private L2 alone and with a smaller L2 and a
    shared L3 of the same bytes together. Needs scripts/envs/sglang, 6 GB of memory and about 15 minutes.

    [bold]Examples[/bold]

      loadback bench reach --engine sglang --json

      loadback bench reach --prompts 20 --sessions 4
    """
    if engine != "sglang":
        raise typer.BadParameter(f"{engine!r} is not sglang", param_hint="--engine")
    plan = msgspec.structs.replace(Plan(), prompts=prompts, sessions=sessions)
    try:
        outcome = asyncio.run(run_experiment(plan, _MODEL_DIR, _tell))
    except _EXPECTED as error:
        _tell(str(error))
        raise typer.Exit(1) from error
    Console().print(table(outcome))
    if as_json_line:
        print(json.dumps(as_json(outcome)), flush=True)


def as_json(outcome: Outcome) -> dict[str, object]:
    """Shares of prompt tokens for hits; medians for times."""
    travelled, private, shared = outcome.travelled, outcome.l2_only, outcome.l2_l3
    return {
        "prompts": travelled.prompts,
        "text_mismatches": travelled.text_mismatches,
        "restored_from_storage": travelled.restored_from_storage,
        "restored_after_kill": travelled.restored_after_kill,
        "first_call_hit": _shares(private.first_call_hit, shared.first_call_hit, outcome.possible.first_call),
        "later_call_hit": _shares(private.later_call_hit, shared.later_call_hit, outcome.possible.later_call),
        "ttft_ms": {
            "computed": round(travelled.computed_ttft_ms, 1),
            "restored": round(travelled.restored_ttft_ms, 1),
            "after_kill": round(travelled.after_kill_ttft_ms, 1),
            "l2_only": round(private.ttft_ms, 1),
            "l2_l3": round(shared.ttft_ms, 1),
        },
    }


def _shares(private: float, shared: float, possible: float) -> dict[str, float]:
    return {"l2_only": round(private, 4), "l2_l3": round(shared, 4), "possible": round(possible, 4)}


def table(outcome: Outcome) -> Table:
    made = Table("", "value", title="reach of a prefix on real engines", title_justify="left")
    for name, value in as_json(outcome).items():
        made.add_row(name, json.dumps(value))
    return made


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
