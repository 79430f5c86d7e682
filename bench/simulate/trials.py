"""`loadback sim ablation`, `churn` and `prefetch`: what each guard of `cost` is worth, what a lost worker costs, and what
prefetch does beside chance."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from bench.simulate.ablation import ablation_table, build_ablation, deltas
from bench.simulate.churn import JOINED, LOST, parse_changes
from bench.simulate.console import compare_choice, guards_of, run_counted, show, told_errors, words
from bench.simulate.experiments import Choice, churn_experiment
from bench.simulate.options import (
    AsJson,
    Assume,
    Cost,
    Hindsight,
    Horizon,
    HostGb,
    Jobs,
    Out,
    Policies,
    Prefetch,
    Seed,
    Topology,
)
from bench.simulate.prefetch_trial import Trial, changes, trial_table, trials_of
from bench.simulate.runner import Run
from bench.simulate.settings import parse_assumed

_CHURN_POLICIES = "cost,longest_prefix,dynamo,sgl_router,mooncake,smg_cache_aware,sticky,consistent_hash,round_robin"


def ablation(
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas: each variant runs under every one.")] = "1,2",
    experiments: Annotated[str, typer.Option(help="Of weka, fork and mooncake, separated by commas.")] = "weka,fork,mooncake",
    as_json: AsJson = False,
    jobs: Jobs = 0,
    scale: Annotated[float, typer.Option(min=0.1, help="Factor of the experiments' horizons.")] = 1.0,
) -> None:
    """Policy cost without one of its guards at a time, on weka with 128 sessions, fork and mooncake, at shortened horizons.

    [bold]Example[/bold]

      loadback sim ablation --json
    """
    with told_errors():
        numbers = seeds_of(seeds)
        runs = build_ablation(words(experiments), numbers, scale)
        found = deltas(run_counted({run.label: run.run for run in runs}, jobs), runs)
    show(ablation_table(found, numbers))
    if as_json:
        print(json.dumps({"experiment": "ablation", "seeds": numbers, "policy": "cost", "configs": found}), flush=True)


def prefetch(
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas: the more, the surer.")] = "1,2,3",
    experiments: Annotated[
        str,
        typer.Option(
            help="Of weka, weka128, fork, mooncake, synthetic, churn, scale8, exp1 (its C), exp1-held and exp2 (its B), "
            "separated by commas."
        ),
    ] = "weka128,mooncake,churn",
    as_json: AsJson = False,
    jobs: Jobs = 0,
    scale: Annotated[float, typer.Option(min=0.1, help="Factor of the experiments' horizons.")] = 1.0,
) -> None:
    """Prefetch on against off over several seeds, and off against off with everything a ten-thousandth later: what chance does.

    [bold]Example[/bold]

      loadback sim prefetch --experiments weka128 --seeds 1,2,3,4,5,6,7,8 --json
    """
    with told_errors():
        numbers = seeds_of(seeds)
        found = {name: _tried(name, trial, numbers, scale, jobs) for name, trial in trials_of(words(experiments)).items()}
    show(trial_table(found, numbers))
    if as_json:
        print(json.dumps({"experiment": "prefetch", "seeds": numbers, "policy": "cost", "configs": found}), flush=True)


def seeds_of(text: str) -> list[int]:
    """Raises `ValueError` for what is no number, and where there is none."""
    given = words(text)
    if not given or not all(word.isdecimal() for word in given):
        raise ValueError(f"--seeds wants numbers separated by commas, not {text!r}")
    return [int(word) for word in given]


def _tried(name: str, trial: Trial, seeds: list[int], scale: float, jobs: int) -> dict[str, Any]:
    """One trace at a time: its sessions under all seeds are enough to hold in memory."""
    runs = {(seed, arm): Run(each, "cost", seed) for seed in seeds for arm, each in trial.arms(seed, scale).items()}
    results = run_counted({f"{name} {arm} {seed}": run for (seed, arm), run in runs.items()}, jobs)
    return changes({(seed, arm): results[f"{name} {arm} {seed}"] for seed, arm in runs}, seeds)


def churn(
    policies: Policies = _CHURN_POLICIES,
    lose: Annotated[str, typer.Option(help="Workers that are lost, as in p1@900,d0@1000 (virtual seconds).")] = LOST,
    join: Annotated[str, typer.Option(help="Workers that join with empty caches, as in p4@1200.")] = JOINED,
    concurrency: Annotated[int, typer.Option("--concurrency", "-k", min=1, help="Sessions open at once.")] = 128,
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    horizon_s: Horizon = 1_500,
    host_gb: HostGb = None,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """Recorded Claude Code sessions while a worker is lost with its caches and, later, another joins with none.

    [bold]Examples[/bold]

      loadback sim churn --json

      loadback sim churn --lose d0@900 --join d4@1200 --policies cost,round_robin
    """
    with told_errors():
        changes = parse_changes(lose, joins=False) + parse_changes(join, joins=True)
        guards, assumed = guards_of(cost), parse_assumed(assume)
        choice = Choice(
            topology, "", "", None, horizon_s, host_gb, cost=guards, churn=changes, hindsight=hindsight, assumed=assumed
        )
        build = partial(churn_experiment, seed=seed, concurrency=concurrency)
        compare_choice(build, choice, policies, prefetch, seed, jobs, as_json, out, unsaid=_CHURN_POLICIES)
