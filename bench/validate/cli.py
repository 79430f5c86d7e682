"""`loadback sim validate`: whether the simulator's engine predicts a real server that it was not fitted on."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.validate.experiment import MARKS, Outcome, Plan, Repeat, mark_ms, run_experiment, within
from bench.validate.intervals import Ratio
from bench.validate.real_server import ReplayFailed
from bench.validate.timed import Timed
from engine_adapters.base import AdapterError
from engine_adapters.launch.environments import EngineNotInstalled
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError

_MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
_TABLE_WIDTH = 132
_EXPECTED = (
    ReplayFailed, AdapterError, EngineNotInstalled, EngineStartError, NoFreePort, httpx.HTTPError, TimeoutError, ValueError,
)  # fmt: skip


def validate(
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Fits, each with sessions of its own to predict.")] = 5,
    sessions: Annotated[int, typer.Option(min=1, max=100, help="Sessions to fit on, and as many to predict, a repeat.")] = 15,
    concurrency: Annotated[int, typer.Option("--concurrency", "-k", min=1, max=16, help="Sessions open at once.")] = 6,
    seed: Annotated[int, typer.Option(help="Of which sessions are drawn.")] = 1,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Fit the simulator's engine to real SGLang on this CPU on some recorded sessions, and predict the TTFT of others.

    Needs scripts/envs/sglang, 2 GB of memory, an otherwise idle machine and about six minutes.

    [bold]Example[/bold]

      loadback sim validate --json
    """
    plan = Plan(repeats=repeats, sessions=sessions, concurrency=concurrency, seed=seed)
    try:
        outcome = asyncio.run(run_experiment(plan, _MODEL_DIR, _tell))
    except _EXPECTED as error:
        _tell(f"{type(error).__name__}: {error}")
        raise typer.Exit(1) from error
    Console(width=_TABLE_WIDTH).print(table(outcome))
    if as_json_line:
        print(json.dumps(as_json(outcome)), flush=True)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Ratios are predicted over measured; every run is there."""
    pooled = {name: outcome.pooled(share) for name, share in MARKS.items()}
    runs = [run_of(outcome, repeat) for repeat in outcome.repeats]
    return {
        "experiment": "validate",
        "engine": "sglang",
        "seed": outcome.plan.seed,
        "within_20_percent": all(within(found) for found in pooled.values()),
        "ratio": {name: _rounded(found) for name, found in pooled.items()},
        "runs_within_20_percent": {name: sum(run["within_20_percent"][name] for run in runs) for name in MARKS},
        "runs": runs,
    }


def run_of(outcome: Outcome, repeat: Repeat) -> dict[str, Any]:
    ratios = {name: outcome.of(repeat, share) for name, share in MARKS.items()}
    return {
        "repeat": repeat.number,
        "measured_first": "held_out" if repeat.held_first else "fit",
        "calls": {"fit": len(repeat.fit_calls), "held_out": len(repeat.measured)},
        "measured_ms": _marks(repeat.measured),
        "predicted_ms": _marks(repeat.predicted),
        "ratio": {name: _rounded(found) for name, found in ratios.items()},
        "within_20_percent": {name: within(found) for name, found in ratios.items()},
        "cached_tokens": {"measured": _cached(repeat.measured), "predicted": _cached(repeat.predicted)},
        "fitted": _rates(repeat),
    }


def table(outcome: Outcome) -> Table:
    plan = outcome.plan
    title = f"TTFT of held-out sessions on real SGLang, {plan.concurrency} at once, 1/{plan.scale.divisor} of the recording"
    made = Table("repeat", *(f"{name}, {word}" for name in MARKS for word in ("measured", "predicted", "ratio")), title=title)
    for repeat in outcome.repeats:
        made.add_row(str(repeat.number), *(word for name in MARKS for word in _cells(outcome, repeat, name)))
    made.add_row("all", *(word for share in MARKS.values() for word in ("", "", _spread(outcome.pooled(share)))))
    return made


def _cells(outcome: Outcome, repeat: Repeat, name: str) -> tuple[str, str, str]:
    measured, predicted = (mark_ms(calls, MARKS[name]) for calls in (repeat.measured, repeat.predicted))
    return f"{measured:.1f} ms", f"{predicted:.1f} ms", _spread(outcome.of(repeat, MARKS[name]))


def _spread(found: Ratio) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _rounded(found: Ratio) -> dict[str, float]:
    return {name: round(value, 4) for name, value in msgspec.to_builtins(found).items()}


def _marks(calls: tuple[Timed, ...]) -> dict[str, float]:
    return {name: round(mark_ms(calls, share), 2) for name, share in MARKS.items()}


def _cached(calls: tuple[Timed, ...]) -> int:
    return sum(timed.cached_tokens for timed in calls)


def _rates(repeat: Repeat) -> dict[str, float]:
    engine = repeat.fitted.engine
    names = ("prefill_base_ms", "prefill_ms_per_token", "prefill_ms_per_end2", "decode_base_ms", "decode_ms_per_running",
             "decode_ms_per_context_token")  # fmt: skip
    rates = {name: getattr(engine, name) for name in names}
    rates |= {"wire_ms": repeat.fitted.wire_ms, "wire_ms_per_token": repeat.fitted.wire_ms_per_token}
    return {name: float(f"{value:.4g}") for name, value in rates.items()}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
