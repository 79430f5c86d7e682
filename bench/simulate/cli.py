"""`loadback sim …`: every policy on the same clients and pool, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench.simulate.article import exp1, exp2, grid
from bench.simulate.console import (
    compare,
    compare_arms,
    compare_choice,
    guards_of,
    names_of,
    one_of,
    report,
    run_shown,
    setup_of,
    show,
    told_errors,
    turns_file,
    words,
)
from bench.simulate.experiments import (
    Choice,
    Experiment,
    fork_experiment,
    mooncake_experiment,
    scale_experiment,
    weka_experiment,
)
from bench.simulate.options import (
    AsJson,
    Assume,
    Cost,
    Drain,
    Hardware,
    Hindsight,
    Horizon,
    HostGb,
    Jobs,
    Model,
    Out,
    Policies,
    Prefetch,
    Seed,
    Topology,
    Trace,
    Weights,
)
from bench.simulate.runner import Run
from bench.simulate.settings import parse_assumed
from bench.simulate.table import result_table
from bench.simulate.trials import ablation, churn, prefetch
from costmodel.roofline import DataType

_SCALE_POLICIES = "cost,round_robin,power_of_two,longest_prefix,dynamo"


def sim_commands() -> typer.Typer:
    """The experiments, one command each."""
    sim = typer.Typer(help="Simulate policies on recorded agent traces.", no_args_is_help=True, rich_markup_mode="rich")
    for command in (weka, mooncake, fork, exp1, exp2, scale, grid, ablation, churn, prefetch):
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
    weights: Weights = None,
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    drain_share: Drain = None,
    path: Trace = None,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """Recorded Claude Code sessions, closed loop: gaps and tool times as recorded, service time floats.

    [bold]Examples[/bold]

      loadback sim weka --policies all --json

      loadback sim weka -k 128 --topology 8P4D --policies cost,round_robin

      loadback sim weka --prefetch on,off,tool_call
    """
    with told_errors():
        choice = _choice(topology, hardware, model, weights, horizon_s, host_gb, cost, hindsight, assume, drain_share, path)
        build = partial(weka_experiment, seed=seed, concurrency=concurrency)
        compare_choice(build, choice, policies, prefetch, seed, jobs, as_json, out)


def mooncake(
    policies: Policies = "all",
    kind: Annotated[str, typer.Option(help="conversation or synthetic.")] = "conversation",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    hardware: Hardware = "",
    model: Model = "",
    weights: Weights = None,
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    drain_share: Drain = None,
    path: Trace = None,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """Mooncake's recorded chat requests, open loop at their own times.

    [bold]Examples[/bold]

      loadback sim mooncake --kind synthetic --policies all --json

      loadback sim mooncake --prefetch on,off
    """
    if kind not in ("conversation", "synthetic"):
        raise typer.BadParameter(f"{kind!r} is neither conversation nor synthetic", param_hint="--kind")
    with told_errors():
        choice = _choice(topology, hardware, model, weights, horizon_s, host_gb, cost, hindsight, assume, drain_share, path)
        build = partial(mooncake_experiment, seed=seed, kind=kind)
        compare_choice(build, choice, policies, prefetch, seed, jobs, as_json, out)


def fork(
    policies: Policies = "all",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    topology: Topology = "",
    hardware: Hardware = "",
    model: Model = "",
    weights: Weights = None,
    horizon_s: Horizon = 0,
    host_gb: HostGb = None,
    cost: Cost = "",
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """Bursts of 43 subagents over one prefix of 40k tokens.

    [bold]Example[/bold]

      loadback sim fork --policies all --json
    """
    with told_errors():
        choice = _choice(topology, hardware, model, weights, horizon_s, host_gb, cost, hindsight, assume)
        build = partial(fork_experiment, seed=seed)
        compare_choice(build, choice, policies, prefetch, seed, jobs, as_json, out)


def scale(
    policies: Policies = _SCALE_POLICIES,
    workers: Annotated[
        str, typer.Option(help="Sizes of the pool, separated by commas; half prefill, half decode.")
    ] = "8,64,512",
    seed: Seed = 1,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    horizon_s: Horizon = 0,
    hindsight: Hindsight = 0,
    assume: Assume = "",
    out: Out = None,
    prefetch: Prefetch = "",
) -> None:
    """ProgramBench-shaped sessions over pools of growing size, eight sessions a worker.

    [bold]Example[/bold]

      loadback sim scale --workers 8,64 --json
    """
    sizes = sizes_of(workers)
    with told_errors():
        choice = Choice(horizon_s=horizon_s, hindsight=hindsight, assumed=parse_assumed(assume))
        builds = {str(size): partial(scale_experiment, seed=seed, workers=size) for size in sizes}
        if prefetch:
            compare_arms(builds, choice, prefetch, one_of(policies, _SCALE_POLICIES), seed, jobs, as_json, out)
        elif len(sizes) == 1:
            compare(scale_experiment(choice, seed, *sizes), policies, seed, jobs, as_json, out)
        else:
            _by_size(builds, choice, names_of(policies), seed, jobs, as_json, out)


def _choice(
    topology: str,
    hardware: str,
    model: str,
    weights: DataType | None,
    horizon_s: float,
    host_gb: float | None,
    cost: str,
    hindsight: float,
    assume: str,
    drain_share: float | None = None,
    path: Path | None = None,
) -> Choice:
    """Raises `ValueError` naming what is wrong."""
    guards, assumed = guards_of(cost), parse_assumed(assume)
    chosen = Choice(topology, hardware, model, weights, horizon_s, host_gb, drain_share, path, guards)
    return msgspec.structs.replace(chosen, hindsight=hindsight, assumed=assumed)


def sizes_of(text: str) -> list[int]:
    """Raises `BadParameter` for what is no size of a pool of two equal halves."""
    given = words(text)
    if not given or not all(word.isdecimal() and int(word) >= 2 and int(word) % 2 == 0 for word in given):
        raise typer.BadParameter(f"give even sizes from 2 on, as in 8,64,512, not {text!r}", param_hint="--workers")
    return list(dict.fromkeys(map(int, given)))


def _by_size(
    builds: Mapping[str, Callable[[Choice], Experiment]],
    choice: Choice,
    names: Sequence[str],
    seed: int,
    jobs: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """A folder of its own in `out` for each."""
    found: dict[str, Any] = {}
    for size, build in builds.items():
        experiment = build(choice)
        folder = None if out is None else out / size
        results = run_shown({name: Run(experiment, name, seed, turns_file(folder, name)) for name in names}, jobs)
        title = f"scale, {size} workers"
        show(result_table(title, results))
        found[size] = {"setup": setup_of(experiment), "policies": results}
        report(folder, title, found[size], results)
    if as_json:
        print(json.dumps({"experiment": "scale", "seed": seed, "configs": found}), flush=True)
