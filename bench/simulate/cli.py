"""`loadback sim …`: every policy on the same clients and pool, in virtual time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.simulate.experiments import (
    Choice,
    Experiment,
    exp1_experiment,
    exp2_experiment,
    fork_experiment,
    mooncake_experiment,
    scale_experiment,
    weka_experiment,
)
from bench.simulate.machine import MachineError
from bench.simulate.runner import RunFailed, run_policies
from bench.simulate.table import result_table
from costmodel.policies import REGISTRY

_TABLE_WIDTH = 150
_SCALE_POLICIES = "cost,round_robin,power_of_two,longest_prefix,dynamo"

Policies = Annotated[str, typer.Option(help="Names separated by commas, or all.")]
Seed = Annotated[int, typer.Option(help="Of clients, beliefs and lots.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
Jobs = Annotated[int, typer.Option(min=0, help="Policies simulated at once; 0 = one a core.")]
Topology = Annotated[str, typer.Option(help="1P2D, or 8U for unified workers.")]
Hardware = Annotated[str, typer.Option(help="A file of configs/hardware, or a path.")]
Model = Annotated[str, typer.Option(help="A file of configs/models, or a path.")]
Horizon = Annotated[float, typer.Option(min=0, help="Virtual seconds in which calls are sent.")]
HostGb = Annotated[float | None, typer.Option(min=0, help="L2 in GB of DRAM an accelerator.")]
Drain = Annotated[float | None, typer.Option(min=0, max=1, help="Share of calls whose last worker is not to be had.")]
Trace = Annotated[Path | None, typer.Option(help="A trace of your own in the shipped one's format.")]


def sim_commands() -> typer.Typer:
    """The experiments, one command each."""
    sim = typer.Typer(help="Simulate policies on recorded agent traces.", no_args_is_help=True, rich_markup_mode="rich")
    for command in (weka, mooncake, fork, exp1, exp2, scale):
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
) -> None:
    """Recorded Claude Code sessions, closed loop: gaps and tool times as recorded, service time floats.

    [bold]Examples[/bold]

      loadback sim weka --policies all --json

      loadback sim weka -k 128 --topology 8P4D --policies cost,round_robin
    """
    choice = Choice(topology, hardware, model, 0, horizon_s, host_gb, drain_share, path)
    with _errors():
        _compare(weka_experiment(choice, seed, concurrency), policies, seed, jobs, as_json)


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
) -> None:
    """Mooncake's recorded chat requests, open loop at their own times.

    [bold]Example[/bold]

      loadback sim mooncake --kind synthetic --policies all --json
    """
    if kind not in ("conversation", "synthetic"):
        raise typer.BadParameter(f"{kind!r} is neither conversation nor synthetic", param_hint="--kind")
    choice = Choice(topology, hardware, model, 0, horizon_s, host_gb, drain_share, path)
    with _errors():
        _compare(mooncake_experiment(choice, seed, kind), policies, seed, jobs, as_json)


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
) -> None:
    """Bursts of 43 subagents over one prefix of 40k tokens.

    [bold]Example[/bold]

      loadback sim fork --policies all --json
    """
    choice = Choice(topology, hardware, model, 0, horizon_s, host_gb)
    with _errors():
        _compare(fork_experiment(choice, seed), policies, seed, jobs, as_json)


def exp1(
    policy: Annotated[str, typer.Option(help="The policy that places turns.")] = "cost",
    seed: Seed = 1,
    as_json: AsJson = False,
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
) -> None:
    """The UMBP article's Experiment 1: 1P2D, 128 sessions. Configuration A; B and C need the shared pool.

    [bold]Example[/bold]

      loadback sim exp1 --json
    """
    with _errors():
        _configurations(exp1_experiment(Choice("", hardware, model, 0, horizon_s), seed), policy, seed, as_json)


def exp2(
    policy: Annotated[str, typer.Option(help="The policy that places turns.")] = "cost",
    seed: Seed = 1,
    as_json: AsJson = False,
    hardware: Hardware = "",
    model: Model = "",
    horizon_s: Horizon = 0,
) -> None:
    """The UMBP article's Experiment 2: 2P1D, rotation, forced migration. Configuration A; B needs the shared pool.

    [bold]Example[/bold]

      loadback sim exp2 --json
    """
    with _errors():
        _configurations(exp2_experiment(Choice("", hardware, model, 0, horizon_s), seed), policy, seed, as_json)


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
    with _errors():
        for size in sizes:
            experiment = scale_experiment(Choice(horizon_s=horizon_s), seed, size)
            results = _run(experiment, _names(policies), seed, jobs)
            _show(result_table(f"scale, {size} workers", results))
            found[str(size)] = {"policies": results}
    if as_json:
        print(json.dumps({"experiment": "scale", "seed": seed, "configs": found}), flush=True)


@contextmanager
def _errors() -> Iterator[None]:
    """What a user can mend is told in one line."""
    try:
        yield
    except (MachineError, RunFailed, ValueError, OSError) as error:
        print(str(error), file=sys.stderr, flush=True)
        raise typer.Exit(1) from error


def _compare(experiment: Experiment, policies: str, seed: int, jobs: int, as_json: bool) -> None:
    results = _run(experiment, _names(policies), seed, jobs)
    _show(result_table(_title(experiment, seed), results))
    if as_json:
        print(json.dumps({"experiment": experiment.name, "seed": seed, "setup": _setup(experiment), "policies": results}))


def _configurations(experiment: Experiment, policy: str, seed: int, as_json: bool) -> None:
    """Only configuration A exists; what the others lack is said, not guessed."""
    results = _run(experiment, _names(policy), seed, 1)
    _show(result_table(_title(experiment, seed), {f"A ({name})": found for name, found in results.items()}))
    for lack in experiment.not_modelled:
        print(f"not modelled: {lack}", file=sys.stderr, flush=True)
    if as_json:
        line = {"experiment": experiment.name, "seed": seed, "policy": policy, "setup": _setup(experiment)}
        line |= {"configs": {"A": results[policy]}, "not_modelled": list(experiment.not_modelled)}
        print(json.dumps(line), flush=True)


def _run(experiment: Experiment, names: Sequence[str], seed: int, jobs: int) -> dict[str, dict[str, Any]]:
    """Behind a progress bar a policy, on stderr."""
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def tell(name: str, done_s: float) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=experiment.settings.horizon_s)
            progress.update(bars[name], completed=done_s)

        return run_policies(experiment, names, seed, jobs or os.cpu_count() or 1, tell)


def _names(policies: str) -> list[str]:
    """In the registry's order for all, else as given."""
    if policies.strip() == "all":
        return list(REGISTRY)
    names = [word.strip() for word in policies.split(",") if word.strip()]
    for name in names:
        if name not in REGISTRY:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(REGISTRY)}", param_hint="--policies")
    return names


def _title(experiment: Experiment, seed: int) -> str:
    setup, horizon_s = _setup(experiment), experiment.settings.horizon_s
    return f"{experiment.workload.name}: {setup['topology']} of {setup['worker']}, {horizon_s:,.0f} s, seed {seed}"


def _setup(experiment: Experiment) -> Mapping[str, Any]:
    cluster, settings = experiment.cluster, experiment.settings
    topology = cluster.topology
    pool = f"{topology.prefills}P{topology.decodes}D" if topology.disaggregated else f"{topology.unified}U"
    role = next(iter(topology.roles().values()))
    params = cluster.engine_params(role)
    return {
        "topology": pool,
        "worker": f"{cluster.deployment.accelerators} x {cluster.accelerator.name}, {cluster.model.name}",
        "l1_tokens": params.kv_tokens,
        "l2_tokens": params.host_kv_tokens,
        "concurrency": settings.concurrency,
        "horizon_s": settings.horizon_s,
        "warmup_s": settings.warmup_s,
        "workload_cut_calls": experiment.workload.cut_calls,
        "mfu": cluster.deployment.mfu,
        "prior_error": settings.prior_error,
    }


def _show(table: Any) -> None:
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
