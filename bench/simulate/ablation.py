"""Policy `cost` without one guard at a time, and how far its figures move for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from bench.simulate.experiments import Choice, Experiment, fork_experiment, known_of, mooncake_experiment, weka_experiment
from bench.simulate.runner import Run
from costmodel.params import GUARDS, CostParams

_WHOLE = "all guards"
_PREDICT = "predict_on_route"  # the router's duty rather than a guard of the policy's
_EXPERIMENTS: Mapping[str, Callable[[Choice, int], Experiment]] = {
    "weka": lambda choice, seed: weka_experiment(choice, seed, 128),
    "fork": fork_experiment,
    "mooncake": lambda choice, seed: mooncake_experiment(choice, seed, "conversation"),
}
_HORIZONS_S = {"weka": 1_500.0, "fork": 900.0, "mooncake": 600.0}
_TRIED: Mapping[str, float] = {"eviction_discount": 1.0}  # off by default: what it would do
_MEASURES = {"ttft_p99": ("ttft_s", "p99"), "e2e_p90": ("e2e_s", "p90")}


class AblationRun(msgspec.Struct, frozen=True):
    """One variant in one experiment under one seed."""

    experiment: str
    variant: str
    seed: int
    run: Run

    @property
    def label(self) -> str:
        return f"{self.experiment} {self.variant} {self.seed}"


def variants() -> dict[str, Choice]:
    """By the guard that is off; first none. Guards that are off by default have nothing to lose: some are tried on instead."""
    found = {_WHOLE: Choice(), _PREDICT: Choice(predict=False)}
    defaults = CostParams()
    for guard, off in GUARDS.items():
        if getattr(defaults, guard) != off:
            found[guard] = Choice(cost=msgspec.structs.replace(defaults, **{guard: off}))
        elif guard in _TRIED:
            found[f"{guard} on"] = Choice(cost=msgspec.structs.replace(defaults, **{guard: _TRIED[guard]}))
    return found


def build_ablation(experiments: Sequence[str], seeds: Sequence[int], scale: float) -> list[AblationRun]:
    """Every variant in every experiment under every seed. Raises `ValueError` for an experiment that there is not."""
    return [
        AblationRun(name, variant, seed, _run(name, choice, seed, scale))
        for name in known_of(experiments, _EXPERIMENTS, "--experiments")
        for variant, choice in variants().items()
        for seed in seeds
    ]


def _run(name: str, choice: Choice, seed: int, scale: float) -> Run:
    sized = msgspec.structs.replace(choice, horizon_s=_HORIZONS_S[name] * scale)
    return Run(_EXPERIMENTS[name](sized, seed), "cost", seed)


def deltas(results: Mapping[str, Mapping[str, Any]], runs: Sequence[AblationRun]) -> dict[str, dict[str, dict[str, Any]]]:
    """By experiment and variant: each measure in seconds under every seed, and its change against all guards, seed by seed."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        whole = f"{run.experiment} {_WHOLE} {run.seed}"
        told = found.setdefault(run.experiment, {}).setdefault(run.variant, {})
        for measure in _MEASURES:
            value, base = _value(results[run.label], measure), _value(results[whole], measure)
            told.setdefault(f"{measure}_s", []).append(value)
            told.setdefault(f"{measure}_change", []).append(value / base - 1)
    return found


def _value(figures: Mapping[str, Any], measure: str) -> float:
    kind, which = _MEASURES[measure]
    return float(figures[kind][which])


def ablation_table(found: Mapping[str, Mapping[str, Mapping[str, Any]]], seeds: Sequence[int]) -> Table:
    """A row a guard: what switching it off does to p99 TTFT and p90 E2E, in percent, a figure a seed."""
    table = Table(title=f"cost without one guard, seeds {', '.join(map(str, seeds))}", title_justify="left")
    table.add_column("off", no_wrap=True)
    for name in found:
        table.add_column(f"{name}: TTFT p99, %", justify="right", no_wrap=True)
        table.add_column("E2E p90, %", justify="right", no_wrap=True)
    for variant in variants():
        cells = [_cell(found[name][variant], measure, whole=variant == _WHOLE) for name in found for measure in _MEASURES]
        table.add_row(variant, *cells)
    return table


def _cell(told: Mapping[str, Any], measure: str, *, whole: bool) -> str:
    """Seconds where nothing is off."""
    if whole:
        return " / ".join(f"{value:.2f} s" for value in told[f"{measure}_s"])
    return " / ".join(f"{100 * change:+.1f}" for change in told[f"{measure}_change"])
