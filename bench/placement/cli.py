"""`loadback bench placement`: policies and a rival router on real engines, with a slow worker and forced migration."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.placement.experiment import POLICIES, Outcome, Plan, run_experiment
from bench.placement.figures import as_json, figures, of_policy, prediction
from bench.placement.routers import RouterFailed
from engine_adapters.base import AdapterError
from engine_adapters.launch.environments import EngineNotInstalled
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError
from kvtier.client.channel import AgentUnavailable

_MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
_TABLE_WIDTH = 132
_EXPECTED = (
    RouterFailed, AdapterError, AgentUnavailable, EngineNotInstalled, EngineStartError, NoFreePort, httpx.HTTPError,
    TimeoutError, ValueError,
)  # fmt: skip


def placement(
    engine: Annotated[str, typer.Option(help="Which real engine: sglang.")] = "sglang",
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Runs of each policy, in turns.")] = 3,
    sessions: Annotated[int, typer.Option(min=1, max=100, help="Recorded sessions in each run.")] = 11,
    concurrency: Annotated[int, typer.Option("--concurrency", "-k", min=1, max=16, help="Sessions open at once.")] = 6,
    seed: Annotated[int, typer.Option(help="Of which sessions are drawn.")] = 1,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Place the same recorded sessions on real SGLang 2P1D with a shared L3 by several policies, and by smg.

    One prefill server runs at half speed, and both are taken out of service in turn. Needs scripts/envs/sglang and
    scripts/envs/rivals, 6 GB of memory, an otherwise idle machine and about seven minutes.

    [bold]Example[/bold]

      loadback bench placement --engine sglang --json
    """
    if engine != "sglang":
        raise typer.BadParameter(f"{engine!r} is not sglang", param_hint="--engine")
    plan = Plan(repeats=repeats, sessions=sessions, concurrency=concurrency, seed=seed)
    try:
        outcome = asyncio.run(run_experiment(plan, _MODEL_DIR, _tell))
    except _EXPECTED as error:
        _tell(f"{type(error).__name__}: {error}")
        raise typer.Exit(1) from error
    Console(width=_TABLE_WIDTH).print(table(outcome))
    _tell(f"predicted TTFT: {json.dumps(prediction(outcome))}")
    if as_json_line:
        print(json.dumps(as_json(outcome)), flush=True)


def table(outcome: Outcome) -> Table:
    made = Table("policy", "TTFT p50 / p90 / p99, ms", "E2E p90, ms", "hit, first, later, %", "cached tokens", "errors")
    for policy in POLICIES:
        made.add_row(policy, *cells(figures(of_policy(outcome, policy))))
    return made


def cells(told: dict[str, Any]) -> tuple[str, ...]:
    hits = " / ".join("-" if told[name] is None else f"{100 * told[name]:.1f}" for name in _HITS)
    tiers = ", ".join(f"{tier} {tokens:,}" for tier, tokens in told["cached_tokens_by_tier"].items())
    ttft = " / ".join(f"{value:.0f}" for value in told["ttft_ms"].values())
    return ttft, f"{told['e2e_ms']['p90']:.0f}", hits, tiers, f"{told['errors']} of {told['turns']}"


_HITS = ("hit", "first_call_hit", "later_call_hit")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
