"""What prefetch does to TTFT and throughput over several seeds, beside what chance alone does.

A closed loop answers a change that means nothing with some percent of its slowest turns, so one seed tells nothing. Every seed
is therefore run three times: without prefetch, with it, and without it but with pauses, lags and polls longer by a
ten-thousandth. How far that third run is from the first is what chance does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import msgspec
from rich.table import Table

from bench.simulate.churn import JOINED, LOST, parse_changes
from bench.simulate.experiments import (
    Choice,
    Experiment,
    churn_experiment,
    exp1_experiments,
    exp2_experiments,
    fork_experiment,
    known_of,
    mooncake_experiment,
    scale_experiment,
    weka_experiment,
)
from bench.simulate.prefetch_arms import moved_gb, pooled, prefetch_arms

_CHANCE = "chance"
ARMS = ("off", "on", _CHANCE)
_MEASURES = ("p50", "p90", "p99", "tokens_per_s")
_STIRRED = 1.0001

Build = Callable[[Choice, int], Experiment]


class Trial(msgspec.Struct, frozen=True):
    """One trace: what builds it, and how long it runs."""

    build: Build
    horizon_s: float

    def arms(self, seed: int, scale: float) -> dict[str, Experiment]:
        choice = Choice(horizon_s=self.horizon_s * scale)
        arms = prefetch_arms({"": self.build(choice, seed)}, ("off", "on"))
        return arms | {_CHANCE: _stirred(arms["off"])}


def trials() -> dict[str, Trial]:
    return {
        "weka": Trial(_on_pool(lambda choice, seed: weka_experiment(choice, seed, 32)), 1_800),
        "weka128": Trial(_on_pool(lambda choice, seed: weka_experiment(choice, seed, 128)), 2_400),
        "fork": Trial(_on_pool(fork_experiment), 900),
        "mooncake": Trial(_on_pool(lambda choice, seed: mooncake_experiment(choice, seed, "conversation")), 900),
        "synthetic": Trial(_on_pool(lambda choice, seed: mooncake_experiment(choice, seed, "synthetic")), 900),
        "churn": Trial(_on_pool(_churn), 1_500),
        "scale8": Trial(_on_pool(lambda choice, seed: scale_experiment(choice, seed, 8)), 1_800),
        "exp1": Trial(lambda choice, seed: exp1_experiments(choice, seed, ["C"])["C"], 3_600),
        "exp1-held": Trial(
            lambda choice, seed: exp1_experiments(choice, seed, ["H"])["H"], 3_600
        ),  # C, as the gateway holds turns back
        "exp2": Trial(lambda choice, seed: exp2_experiments(choice, seed, ["B"])["B"], 1_200),
    }


def trials_of(names: Sequence[str]) -> dict[str, Trial]:
    """Raises `ValueError` for one that there is not."""
    return known_of(names, trials(), "--experiments")


def changes(results: Mapping[tuple[int, str], Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """`results` by seed and arm. Each arm's measures seed by seed, the others' changes against off, and what was moved."""
    told: dict[str, Any] = {
        arm: {measure: [_value(results[seed, arm], measure) for seed in seeds] for measure in _MEASURES} for arm in ARMS
    }
    for arm in ARMS[1:]:
        told[f"{arm}_change"] = {
            measure: [value / base - 1 for value, base in zip(told[arm][measure], told["off"][measure], strict=True)]
            for measure in _MEASURES
        }
    gb = [moved_gb(results[seed, "on"]) for seed in seeds]
    return told | {"moved_gb": [moved for moved, _ in gb], "wasted_gb": [wasted for _, wasted in gb]}


def trial_table(found: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> Table:
    """A row a trace: seconds without prefetch, in percent what prefetch and what chance change, with standard errors, and
    what a run moved."""
    table = Table(title=f"prefetch against none, seeds {', '.join(map(str, seeds))}", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("off: TTFT p50 / p90 / p99, s", justify="right", no_wrap=True)
    for column in (*(f"{name}, %" for name in _MEASURES), *(f"chance {name}" for name in _MEASURES[:3])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("moved GB", justify="right", no_wrap=True)
    for name, told in found.items():
        seconds = " / ".join(f"{fmean(told['off'][measure]):.3f}" for measure in _MEASURES[:3])
        on = [_percent(told["on_change"][measure]) for measure in _MEASURES]
        chance = [_percent(told[f"{_CHANCE}_change"][measure]) for measure in _MEASURES[:3]]
        table.add_row(name, seconds, *on, *chance, _moved(sum(told["moved_gb"]), sum(told["wasted_gb"]), len(seeds)))
    return table


def _moved(moved: float, wasted: float, runs: int) -> str:
    """A run's, and the share that was for nothing."""
    return f"{moved / runs:,.0f}, {100 * wasted / moved:.0f} % in vain" if moved else "0"


def _percent(values: Sequence[float]) -> str:
    """The mean, and its standard error where there is one."""
    error = f" ± {100 * stdev(values) / sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):+.1f}{error}"


def _value(figures: Mapping[str, Any], measure: str) -> float:
    return float(figures["tokens_per_s"] if measure == "tokens_per_s" else figures["ttft_s"][measure])


def _on_pool(build: Build) -> Build:
    return lambda choice, seed: pooled(lambda chosen: build(chosen, seed), choice)


def _churn(choice: Choice, seed: int) -> Experiment:
    changes = parse_changes(LOST, joins=False) + parse_changes(JOINED, joins=True)
    return churn_experiment(msgspec.structs.replace(choice, churn=changes), seed, 128)


def _stirred(experiment: Experiment) -> Experiment:
    settings = experiment.settings
    longer = {key: _STIRRED * getattr(settings, key) for key in ("gap_factor", "event_lag_ms", "load_poll_ms", "load_lag_ms")}
    return msgspec.structs.replace(experiment, settings=msgspec.structs.replace(settings, **longer))
