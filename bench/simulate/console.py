"""What every `loadback sim` command does beyond choosing an experiment: options, progress bar, table and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.simulate.columns import ExtraMissing, require_extra
from bench.simulate.experiments import Choice, Experiment
from bench.simulate.prefetch_arms import pooled, prefetch_arms, prefetch_table
from bench.simulate.report import turns_path, write_report
from bench.simulate.runner import Run, RunFailed, run_all
from bench.simulate.settings import ASSUMED, Settings
from bench.simulate.table import result_table
from costmodel.params import CostParams, Objective
from costmodel.policies import REGISTRY
from costmodel.roofline import DeploymentError
from costmodel.values import Role
from router.config.data_sheets import DataSheetError

_TABLE_WIDTH = 190


@contextmanager
def told_errors() -> Iterator[None]:
    """What a user can mend is told in one line: status 2 for a wrong value, as for an unknown option, else 1."""
    try:
        yield
    except (DataSheetError, ValueError) as error:
        option = " (--weights)" if isinstance(error, DeploymentError) and error.key == "weight_type" else ""
        print(f"{error}{option}", file=sys.stderr, flush=True)
        raise typer.Exit(2) from error
    except (RunFailed, ExtraMissing, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        raise typer.Exit(1) from error


def compare(experiment: Experiment, policies: str, seed: int, jobs: int, as_json: bool, out: Path | None) -> None:
    runs = {name: Run(experiment, name, seed, turns_file(out, name)) for name in names_of(policies)}
    results = run_shown(runs, jobs)
    line = {"experiment": experiment.name, "seed": seed, "setup": setup_of(experiment), "policies": results}
    _tell(_title(experiment, seed), results, line, "policy", as_json, out)


def compare_choice(
    build: Callable[[Choice], Experiment],
    choice: Choice,
    policies: str,
    prefetch: str,
    seed: int,
    jobs: int,
    as_json: bool,
    out: Path | None,
    unsaid: str = "all",
) -> None:
    """The policies of one experiment, or one of them in every arm of `prefetch`."""
    if prefetch:
        compare_arms({"": build}, choice, prefetch, one_of(policies, unsaid), seed, jobs, as_json, out)
    else:
        compare(build(choice), policies, seed, jobs, as_json, out)


def compare_arms(
    builds: Mapping[str, Callable[[Choice], Experiment]],
    choice: Choice,
    prefetch: str,
    policy: str,
    seed: int,
    jobs: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """One policy in every arm of `prefetch`, on pools that their nodes share."""
    experiments = {label: pooled(build, choice) for label, build in builds.items()}
    configurations(prefetch_arms(experiments, words(prefetch)), policy, seed, jobs, as_json, out, key="prefetch")


def configurations(
    experiments: Mapping[str, Experiment],
    policy: str,
    seed: int,
    jobs: int,
    as_json: bool,
    out: Path | None,
    key: str = "configs",
) -> None:
    """One policy on every configuration. `key`: of the results in JSON."""
    name = one_policy(policy)
    runs = {label: Run(each, name, seed, turns_file(out, label)) for label, each in experiments.items()}
    results = run_shown(runs, jobs)
    first = next(iter(experiments.values()))
    setups = {label: setup_of(each) for label, each in experiments.items()}
    line = {"experiment": first.name, "seed": seed, "policy": name, "setup": setups, key: results}
    if any(found.get("prefetch") for found in results.values()):
        show(prefetch_table(results))
    _tell(f"{_title(first, seed)}, {name}", results, line, "configuration", as_json, out)


def turns_file(out: Path | None, label: str) -> str:
    """Raises `ExtraMissing` and `OSError` before anything was computed in vain."""
    if out is None:
        return ""
    require_extra()
    out.mkdir(parents=True, exist_ok=True)
    return str(turns_path(out, label))


def _tell(
    title: str, results: Mapping[str, dict[str, Any]], line: Mapping[str, Any], rows: str, as_json: bool, out: Path | None
) -> None:
    show(result_table(title, results, rows))
    if not any(each["turns"] for each in results.values()):
        _tell_warmup(line["setup"])
    report(out, title, line, results)
    if as_json:
        print(json.dumps(line), flush=True)


def report(out: Path | None, title: str, line: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Written where a folder is given; `line` is what `--json` prints."""
    if out is not None:
        print(f"report: {write_report(out, title, line, results)}", file=sys.stderr, flush=True)


def _tell_warmup(setup: Mapping[str, Any]) -> None:
    """`setup` of one experiment, or of several by label."""
    warmup_s = setup["warmup_s"] if "warmup_s" in setup else max(each["warmup_s"] for each in setup.values())
    text = f"nothing was counted: turns of the first {warmup_s:,.0f} s warm up; raise --horizon-s"
    print(text, file=sys.stderr, flush=True)


def run_shown(runs: Mapping[str, Run], jobs: int) -> dict[str, dict[str, Any]]:
    """Behind a bar for all and one for each that runs, on stderr. Raises `ValueError` where a horizon is too short."""
    if short := next(filter(None, (_too_short(run.experiment.settings) for run in runs.values())), ""):
        raise ValueError(f"{short}: give a longer --horizon-s (ablation: --scale)")
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    horizons_s = {name: run.experiment.settings.horizon_s for name, run in runs.items()}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}
        told_s: dict[str, float] = {}
        whole = progress.add_task(f"{len(runs)} runs", total=sum(horizons_s.values()), visible=len(runs) > 1)

        def tell(name: str, done_s: float) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=horizons_s[name])
            told_s[name] = done_s
            progress.update(bars[name], completed=done_s, visible=done_s < horizons_s[name] or len(runs) == 1)
            progress.update(whole, completed=sum(told_s.values()))

        return run_all(runs, jobs or os.cpu_count() or 1, tell)


def run_counted(runs: Mapping[str, Run], jobs: int) -> dict[str, dict[str, Any]]:
    """As `run_shown`, for figures that are compared: raises `ValueError` where a run has counted no turn."""
    results = run_shown(runs, jobs)
    empty = [label for label, found in results.items() if not found["turns"]]
    if empty:
        raise ValueError(f"nothing was counted in {', '.join(empty)}: give a longer horizon (--scale)")
    return results


def _too_short(settings: Settings) -> str:
    """Why nothing that is worth counting would be; empty where the horizon is long enough."""
    if settings.warmup_s and settings.horizon_s <= settings.warmup_s:
        return f"turns of the first {settings.warmup_s:,.0f} s warm up"
    if settings.concurrency and settings.horizon_s <= settings.ramp_s:
        return f"sessions begin over the first {settings.ramp_s:,.0f} s"
    return ""


def guards_of(text: str) -> CostParams:
    """`key=value` pairs. Raises `ValueError` naming what is wrong with them."""
    pairs = [word.split("=", 1) for word in text.split(",") if word.strip()]
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError(f"--cost wants key=value pairs, not {text!r}")
    given = {key.strip(): value.strip() for key, value in pairs}
    unknown = given.keys() - {field.name for field in msgspec.structs.fields(CostParams)}
    if unknown:
        known = ", ".join(field.name for field in msgspec.structs.fields(CostParams))
        raise ValueError(f"--cost knows no {', '.join(sorted(unknown))}: choose from {known}")
    try:
        params = msgspec.convert(given, CostParams, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"--cost: {error}") from error
    if params.objective is Objective.SLO:
        raise ValueError("--cost: no simulated turn has a deadline, so objective=slo would be e2e")
    return params


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def one_policy(policy: str) -> str:
    if policy not in REGISTRY:
        raise typer.BadParameter(f"{policy!r} is none of {', '.join(REGISTRY)}", param_hint="--policy")
    return policy


def one_of(policies: str, unsaid: str) -> str:
    """The arms of prefetch are compared under one policy: `cost` where the command's own choice was left `unsaid`."""
    names = names_of("cost" if policies == unsaid else policies)
    if len(names) != 1:
        raise typer.BadParameter("give one policy beside --prefetch", param_hint="--policies")
    return names[0]


def names_of(policies: str) -> list[str]:
    """In the registry's order for all, else as given."""
    if policies.strip() == "all":
        return list(REGISTRY)
    names = words(policies)
    if not names:
        raise typer.BadParameter(f"give all or some of {', '.join(REGISTRY)}", param_hint="--policies")
    for name in names:
        if name not in REGISTRY:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(REGISTRY)}", param_hint="--policies")
    return names


def _title(experiment: Experiment, seed: int) -> str:
    setup, horizon_s = setup_of(experiment), experiment.settings.horizon_s
    return f"{experiment.workload.name}: {setup['topology']} of {setup['worker']}, {horizon_s:,.0f} s, seed {seed}"


def setup_of(experiment: Experiment) -> Mapping[str, Any]:
    cluster, settings = experiment.cluster, experiment.settings
    topology = cluster.topology
    pool = f"{topology.prefills}P{topology.decodes}D" if topology.disaggregated else f"{topology.unified}U"
    role = next(iter(topology.roles().values()))
    params = cluster.engine_params(role)
    return {
        "topology": pool,
        "worker": f"{cluster.deployment.accelerators} x {cluster.accelerator.name}, {cluster.model.name}",
        "weights": cluster.deployment.weight_type,
        "l1_tokens": params.kv_tokens,
        "decode_tokens": cluster.engine_params(Role.DECODE).kv_tokens if topology.disaggregated else None,
        "l2_tokens": params.host_kv_tokens,
        "l3_tokens_per_node": cluster.pool_pages * cluster.engines.page_tokens,
        "concurrency": settings.concurrency,
        "horizon_s": settings.horizon_s,
        "warmup_s": settings.warmup_s,
        "workload_cut_calls": experiment.workload.cut_calls,
        "mfu": cluster.deployment.mfu,
        **{key: getattr(settings, key) for key in ASSUMED},
        "own_node": settings.own_node > 0,
        "prefetch": sorted(settings.prefetch),
        "cost": _changed(experiment.params.cost),
    }


def _changed(params: CostParams) -> dict[str, Any]:
    """Guards that are not at their defaults."""
    defaults = msgspec.structs.asdict(CostParams())
    return {key: value for key, value in msgspec.structs.asdict(params).items() if value != defaults[key]}


def show(table: Table) -> None:
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
