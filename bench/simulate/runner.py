"""Runs every policy of an experiment, several at once in processes of their own, and says how far each has come."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from bench.simulate.columns import write_turns
from bench.simulate.experiments import Experiment
from bench.simulate.figures import Price, figures
from bench.simulate.simulation import Simulation
from costmodel.policies import REGISTRY

Tell = Callable[[str, float], None]  # label, virtual seconds done


class RunFailed(Exception):
    """A policy's run ended in an error; the message holds its traceback."""


class Run(msgspec.Struct, frozen=True):
    """One policy in one experiment."""

    experiment: Experiment
    policy: str
    seed: int
    turns_file: str = ""  # where its turns are written as Parquet; empty: nowhere


def run_policy(run: Run, tell: Callable[[float], None] | None = None) -> dict[str, Any]:
    """One policy's figures."""
    experiment = run.experiment
    policy = REGISTRY[run.policy](experiment.params)
    cost = experiment.params.cost
    simulation = Simulation(experiment.workload, experiment.cluster, policy, experiment.settings, run.seed, cost)
    outcome = simulation.run(tell)
    if run.turns_file:
        write_turns(Path(run.turns_file), outcome.served)
    return figures(outcome, experiment.settings.warmup_s * 1000, Price(experiment.cluster.usd_per_hour))


def run_all(runs: Mapping[str, Run], jobs: int, tell: Tell) -> dict[str, dict[str, Any]]:
    """Figures by label, in the order asked for. Raises `RunFailed`; no process outlives the call."""
    if jobs < 2 or len(runs) < 2:
        return {label: run_policy(run, partial(tell, label)) for label, run in runs.items()}
    context = multiprocessing.get_context("fork")  # the workload is shared, not sent
    left, found = list(runs), {}
    running: dict[Connection, tuple[str, BaseProcess]] = {}
    try:
        while left or running:
            while left and len(running) < jobs:
                name = left.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, runs[name]), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (name, process)
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                name, child = running[connection]
                if (result := _read(connection, name, tell)) is not None:
                    found[name] = result
                    del running[connection]
                    child.join()
    finally:
        for _, child in running.values():
            child.kill()
            child.join()
    return {label: found[label] for label in runs}


def _read(connection: Connection, name: str, tell: Tell) -> dict[str, Any] | None:
    """One message of a child: how far it is (None), or its figures."""
    try:
        message = connection.recv()
    except EOFError:
        raise RunFailed(f"{name}: its process died") from None
    if isinstance(message, float):
        tell(name, message)
        return None
    if isinstance(message, str):
        raise RunFailed(f"{name}:\n{message}")
    return dict(message)


def _child(connection: Connection, run: Run) -> None:
    try:
        connection.send(run_policy(run, connection.send))
    except Exception:  # noqa: BLE001  the process's root: whatever happens is told to the parent, which raises it
        connection.send(traceback.format_exc())
