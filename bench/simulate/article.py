"""`loadback sim exp1`, `exp2` and `grid`: the UMBP article's experiments and what they hang on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bench.simulate.console import configurations, guards_of, one_policy, run_shown, show, told_errors, words
from bench.simulate.experiments import Choice, Experiment, exp1_experiments, exp2_experiments
from bench.simulate.grid import grid as build_grid
from bench.simulate.grid import grid_table
from bench.simulate.options import (
    AsJson,
    Assume,
    Configs,
    Cost,
    Hardware,
    Hindsight,
    Horizon,
    Jobs,
    Mfu,
    Model,
    OnePolicy,
    Out,
    Prefetch,
    Seed,
    Weights,
)
from bench.simulate.prefetch_arms import prefetch_arms
from bench.simulate.runner import Run
from bench.simulate.settings import parse_assumed
from costmodel.roofline import DataType


def exp1(
    policy: OnePolicy = "cost",
    configs: Configs = "A,B,C",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    hardware: Hardware = "",
    model: Model = "",
    weights: Weights = None,
    horizon_s: Horizon = 0,
    mfu: Mfu = 0,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """The UMBP article's Experiment 1: 1P2D, 128 sessions, L2 alone (A), L2 and L3 (B), with loadback prefetch (C).

    C is B with the prefetch planner, four copying threads and copies that take no compute; --prefetch off,on parts the planner
    from the other two, but not in A, which has no L3. D is B with an SSD of 1 TB a node. F is C without the planner and with
    reads from L3 that take no time: the most it could gain. Turns are sent at once in all but H, which is C with
    --assume hold_ms=2000, as the gateway holds them back.

    [bold]Example[/bold]

      loadback sim exp1 --json
    """
    with told_errors():
        choice = _choice(hardware, model, weights, horizon_s, mfu, cost, hindsight, assume)
        experiments = _arms(exp1_experiments(choice, seed, words(configs)), prefetch)
        configurations(experiments, policy, seed, jobs, as_json, out)


def exp2(
    policy: OnePolicy = "cost",
    configs: Configs = "A,B",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    hardware: Hardware = "",
    model: Model = "",
    weights: Weights = None,
    horizon_s: Horizon = 0,
    mfu: Mfu = 0,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """The UMBP article's Experiment 2: 2P1D, rotation, forced migration, L2 alone (A), L2 and L3 (B).

    [bold]Example[/bold]

      loadback sim exp2 --json
    """
    with told_errors():
        choice = _choice(hardware, model, weights, horizon_s, mfu, cost, hindsight, assume)
        experiments = _arms(exp2_experiments(choice, seed, words(configs)), prefetch)
        configurations(experiments, policy, seed, jobs, as_json, out)


def _choice(
    hardware: str, model: str, weights: DataType | None, horizon_s: float, mfu: float, cost: str, hindsight: float, assume: str
) -> Choice:
    """What both commands may change. Raises `ValueError` naming what is wrong."""
    guards, assumed = guards_of(cost), parse_assumed(assume)
    return Choice("", hardware, model, weights, horizon_s, cost=guards, mfu=mfu, hindsight=hindsight, assumed=assumed)


def _arms(experiments: dict[str, Experiment], prefetch: str) -> dict[str, Experiment]:
    return prefetch_arms(experiments, words(prefetch)) if prefetch else experiments


def grid(
    configs: Configs = "A,B,C",
    full: Annotated[bool, typer.Option("--full", help="All with all, 36 points, instead of one varied at a time.")] = False,
    policy: OnePolicy = "cost",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    horizon_s: Horizon = 1_200,
) -> None:
    """Experiment 1 under other assumptions: TP 4 and 8, KV in fp8 and bf16, HBM x0.5, 1 and 2, MFU -50 % and +50 %.

    [bold]Example[/bold]

      loadback sim grid --json
    """
    policy = one_policy(policy)
    with told_errors():
        names = words(configs)
        runs: dict[str, Run] = {}
        for each, experiments in build_grid(Choice(horizon_s=horizon_s), seed, full, names):
            runs |= {f"{each.name} {label}": Run(experiment, policy, seed) for label, experiment in experiments.items()}
        results = run_shown(runs, jobs)
        ran_s = next(iter(runs.values())).experiment.settings.horizon_s
        show(grid_table(results, names, f"exp1 grid, {ran_s:,.0f} s, seed {seed}, {policy}"))
    if as_json:
        print(json.dumps({"experiment": "grid", "seed": seed, "policy": policy, "configs": results}), flush=True)
