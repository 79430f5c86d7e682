"""`loadback sim …`: every policy on the same clients and pool, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench.simulate.console import compare, configurations, guards_of, names_of, run_shown, show, told_errors, words
from bench.simulate.experiments import (
    PREFETCH_HOST_GB,
    Choice,
    exp1_experiments,
    exp2_experiments,
    fork_experiment,
    mooncake_experiment,
    prefetch_experiments,
    scale_experiment,
    weka_experiment,
)
from bench.simulate.grid import grid as build_grid
from bench.simulate.runner import Run
from bench.simulate.table import result_table

_SCALE_POLICIES = "cost,round_robin,power_of_two,longest_prefix,dynamo"

OnePolicy = Annotated[str, typer.Option(help="The policy that places turns.")]
Configs = Annotated[str, typer.Option(help="Configurations, separated by commas.")]
Policies = Annotated[str, typer.Option(help="Names separated by commas, or all.")]
Seed = Annotated[int, typer.Option(help="Of clients, beliefs and lots.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
Jobs = Annotated[int, typer.Option(min=0, help="Policies simulated at once; 0 = one a core.")]
Topology = Annotated[str, typer.Option(help="1P2D, or 8U for unified workers.")]
Hardware = Annotated[str, typer.Option(help="A file of configs/hardware, or a path.")]
Model = Annotated[str, typer.Option(help="A file of configs/models, or a path.")]
Horizon = Annotated[float, typer.Option(min=0, help="Virtual seconds in which calls are sent; 0 = the experiment's own.")]
HostGb = Annotated[float | None, typer.Option(min=0, help="L2 in GB of DRAM an accelerator.")]
Drain = Annotated[float | None, typer.Option(min=0, max=1, help="Share of calls whose last worker is not to be had.")]
Trace = Annotated[Path | None, typer.Option(help="A trace of your own in the shipped one's format.")]
Mfu = Annotated[float, typer.Option(min=0, max=1, help="Share of peak compute that prefill reaches; 0 = the frozen value.")]
Out = Annotated[
    Path | None, typer.Option(help="A folder for Parquet, plots and a page of all; needs the extra loadback\\[sim].")
]
Cost = Annotated[str, typer.Option(help="Guards of the cost policy, as in switch_margin_ms=0,displacement_weight=1.")]


def sim_commands() -> typer.Typer:
    """The experiments, one command each."""
    sim = typer.Typer(help="Simulate policies on recorded agent traces.", no_args_is_help=True, rich_markup_mode="rich")
    for command in (weka, mooncake, fork, exp1, exp2, scale, grid):
        sim.command()(command)
    return sim


def weka(
    policies: Policies = "all",
    concurrency: Annotated[int, typer.Option("--concurrency", "-k", min=1, help="Sessions open at once.")] = 32,
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    drain_share: Drain = None,
    path: Trace = None,
    cost: Cost = "",
    out: Out = None,
    prefetch: Annotated[str, typer.Option(help="on, off or both: one policy with a shared pool, with and without it.")] = "",
) -> None:
    """Recorded Claude Code sessions, closed loop: gaps and tool times as recorded, service time floats.

    [bold]Examples[/bold]

      loadback sim weka --policies all --json

      loadback sim weka -k 128 --topology 8P4D --policies cost,round_robin

      loadback sim weka --prefetch on,off
    """
    with told_errors():
        guards = guards_of(cost)
        choice = Choice(topology, hardware, model, 0, horizon_s, host_gb, drain_share, path, guards)
        if prefetch and host_gb is None:
            choice = msgspec.structs.replace(choice, host_gb=PREFETCH_HOST_GB)
        experiment = weka_experiment(choice, seed, concurrency)
        if prefetch:
            one = "cost" if policies == "all" else policies
            configurations(prefetch_experiments(experiment, words(prefetch)), one, seed, jobs, as_json, out)
        else:
            compare(experiment, policies, seed, jobs, as_json, out)


def mooncake(
    policies: Policies = "all",
    kind: Annotated[str, typer.Option(help="conversation or synthetic.")] = "conversation",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    drain_share: Drain = None,
    path: Trace = None,
    cost: Cost = "",
    out: Out = None,
) -> None:
    """Mooncake's recorded chat requests, open loop at their own times.

    [bold]Example[/bold]

      loadback sim mooncake --kind synthetic --policies all --json
    """
    if kind not in ("conversation", "synthetic"):
        raise typer.BadParameter(f"{kind!r} is neither conversation nor synthetic", param_hint="--kind")
    with told_errors():
        guards = guards_of(cost)
        choice = Choice(topology, hardware, model, 0, horizon_s, host_gb, drain_share, path, guards)
        compare(mooncake_experiment(choice, seed, kind), policies, seed, jobs, as_json, out)


def fork(
    policies: Policies = "all",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    cost: Cost = "",
    out: Out = None,
) -> None:
    """Bursts of 43 subagents over one prefix of 40k tokens.

    [bold]Example[/bold]

      loadback sim fork --policies all --json
    """
    with told_errors():
        choice = Choice(topology, hardware, model, 0, horizon_s, host_gb, cost=guards_of(cost))
        compare(fork_experiment(choice, seed), policies, seed, jobs, as_json, out)


def exp1(
    policy: OnePolicy = "cost",
    configs: Configs = "A,B,C",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
    mfu: Mfu = 0,
    cost: Cost = "",
    out: Out = None,
) -> None:
    """The UMBP article's Experiment 1: 1P2D, 128 sessions, L2 alone (A), L2 and L3 (B), with loadback prefetch (C).

    [bold]Example[/bold]

      loadback sim exp1 --json
    """
    with told_errors():
        choice = Choice("", hardware, model, 0, horizon_s, cost=guards_of(cost), mfu=mfu)
        configurations(exp1_experiments(choice, seed, words(configs)), policy, seed, jobs, as_json, out)


def exp2(
    policy: OnePolicy = "cost",
    configs: Configs = "A,B",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
    mfu: Mfu = 0,
    cost: Cost = "",
    out: Out = None,
) -> None:
    """The UMBP article's Experiment 2: 2P1D, rotation, forced migration, L2 alone (A), L2 and L3 (B).

    [bold]Example[/bold]

      loadback sim exp2 --json
    """
    with told_errors():
        choice = Choice("", hardware, model, 0, horizon_s, cost=guards_of(cost), mfu=mfu)
        configurations(exp2_experiments(choice, seed, words(configs)), policy, seed, jobs, as_json, out)


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
    with told_errors():
        runs: dict[str, Run] = {}
        for each, experiments in build_grid(Choice(horizon_s=horizon_s), seed, full, words(configs)):
            runs |= {f"{each.name} {label}": Run(experiment, policy, seed) for label, experiment in experiments.items()}
        results = run_shown(runs, jobs)
        show(result_table(f"exp1 grid, {horizon_s:,.0f} s, seed {seed}, {policy}", results))
    if as_json:
        print(json.dumps({"experiment": "grid", "seed": seed, "policy": policy, "configs": results}), flush=True)


def scale(
    policies: Policies = _SCALE_POLICIES,
    workers: Annotated[
        str, typer.Option(help="Sizes of the pool, separated by commas; half prefill, half decode.")
    ] = "8,64,512",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    horizon_s: Horizon = 0,
) -> None:
    """ProgramBench-shaped sessions over pools of growing size, eight sessions a worker.

    [bold]Example[/bold]

      loadback sim scale --workers 8,64 --json
    """
    sizes = [int(word) for word in workers.split(",") if word.strip().isdigit()]
    if not sizes or min(sizes) < 2:
        raise typer.BadParameter("give sizes from 2 on, as in 8,64,512", param_hint="--workers")
    found: dict[str, Any] = {}
    with told_errors():
        for size in sizes:
            experiment = scale_experiment(Choice(horizon_s=horizon_s), seed, size)
            results = run_shown({name: Run(experiment, name, seed) for name in names_of(policies)}, jobs)
            show(result_table(f"scale, {size} workers", results))
            found[str(size)] = {"policies": results}
    if as_json:
        print(json.dumps({"experiment": "scale", "seed": seed, "configs": found}), flush=True)
