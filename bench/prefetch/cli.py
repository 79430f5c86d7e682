"""`loadback bench prefetch`: what a turn that returns after a gap gains, and what threads that idle cost."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.prefetch.emulator_site import emulator_site
from bench.prefetch.experiment import ARMS, Outcome, Plan, medians, run_experiment
from bench.prefetch.idle import measure_idle
from bench.prefetch.sglang_site import sglang_site
from bench.prefetch.site import SiteFailed
from engine_adapters.launch.environments import EngineNotInstalled
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError
from router.config.tree import LogConfig
from router.logs import configure_logs

_MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
_WORDS = {"emulator": 1_500, "sglang": 3_000}  # so that computing the prompt anew takes well longer than the rest of a turn
_EXPECTED = (SiteFailed, EngineNotInstalled, EngineStartError, NoFreePort, httpx.HTTPError, TimeoutError)


def prefetch(
    engine: Annotated[str, typer.Option(help="emulator, or sglang: real servers.")] = "emulator",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Sessions in each arm, in turns.")] = 5,
    gap_s: Annotated[float, typer.Option(min=0.5, max=600, help="How long the thread idles.")] = 5.0,
    link_mb_s: Annotated[float, typer.Option(min=0.1, help="Between the nodes of the real servers, in MB/s.")] = 8.0,
    words: Annotated[
        int, typer.Option(min=0, max=8_000, help="Of the thread's prompt, about three tokens each; 0 = the engine's.")
    ] = 0,
    idle: Annotated[int, typer.Option(min=0, max=65_536, help="Measure that many idle threads instead.")] = 0,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="For how long they idle.")] = 60.0,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Let sessions idle and return, with prefetch on and off from the same cold state, and compare what their clients wait.

    [bold]Examples[/bold]

      loadback bench prefetch --engine emulator --json

      loadback bench prefetch --engine sglang --json

      loadback bench prefetch --idle 1000 --seconds 60 --json
    """
    configure_logs(LogConfig(level="warning"))
    try:
        if idle:
            _show_idle(idle, seconds, as_json_line)
        else:
            plan = Plan(repeats=repeats, gap_s=gap_s, prompt_words=words or _WORDS.get(engine, 0))
            _show(asyncio.run(_run(engine, plan, link_mb_s * 1e6)), engine, as_json_line)
    except _EXPECTED as error:
        _tell(f"{type(error).__name__}: {error}")
        raise typer.Exit(1) from error


async def _run(engine: str, plan: Plan, link_bytes_per_s: float) -> Outcome:
    if engine == "emulator":
        async with emulator_site(_MODEL_DIR) as site:
            return await run_experiment(site, plan, _tell)
    if engine == "sglang":
        async with sglang_site(_MODEL_DIR, link_bytes_per_s) as site:
            return await run_experiment(site, plan, _tell)
    raise typer.BadParameter(f"{engine!r} is neither emulator nor sglang", param_hint="--engine")


def as_json(outcome: Outcome) -> dict[str, object]:
    """Medians, and every run."""
    return {
        "first_call_ttft_ms": medians(outcome, "first_call_ttft_ms"),
        "later_call_ttft_ms": medians(outcome, "later_call_ttft_ms"),
        "text_mismatches": outcome.text_mismatches,
        "wasted_bytes_ratio": round(outcome.wasted_bytes_ratio, 4),
        "runs": [
            {name: value for name, value in msgspec.to_builtins(trial).items() if name != "texts"} for trial in outcome.trials
        ],
    }


def _show(outcome: Outcome, engine: str, as_json_line: bool) -> None:
    table = Table("", *(f"prefetch {arm}" for arm in ARMS), title=f"a turn after {outcome.plan.gap_s:g} s, {engine}")
    for name, field in (("first call TTFT ms", "first_call_ttft_ms"), ("later call TTFT ms", "later_call_ttft_ms")):
        table.add_row(name, *(_spread([getattr(trial, field) for trial in outcome.of(arm)]) for arm in ARMS))
    table.add_row("cached, by tier", *(str(outcome.of(arm)[-1].cached_by_tier) for arm in ARMS))
    table.add_row("staged of planned bytes", *(_bytes(outcome, arm) for arm in ARMS))
    table.add_row("warmed bytes", *(str(sum(trial.warmed_bytes for trial in outcome.of(arm))) for arm in ARMS))
    Console().print(table)
    if as_json_line:
        print(json.dumps({"engine": engine, **as_json(outcome)}), flush=True)


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.0f} ({ordered[0]:.0f} to {ordered[-1]:.0f})"


def _bytes(outcome: Outcome, arm: str) -> str:
    trials = outcome.of(arm)
    return f"{sum(trial.moved_bytes for trial in trials)} of {sum(trial.planned_bytes for trial in trials)}"


def _show_idle(threads: int, seconds: float, as_json_line: bool) -> None:
    measured = asyncio.run(measure_idle(threads, seconds))
    print(
        f"{threads} idle threads over {seconds:g} s: {measured.cpu_ms:.0f} ms of CPU,"
        f" an empty gateway {measured.empty_cpu_ms:.0f} ms; {100 * measured.core_share:.3f} % of a core more,"
        f" {measured.planner_bytes / threads:.0f} bytes a thread, the cost model asked {measured.looked_at} times"
    )
    if as_json_line:
        print(json.dumps(msgspec.to_builtins(measured)), flush=True)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
