"""One experiment with prefetch on, off, or for the sake of one trigger alone; and what each arm moved, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from bench.simulate.experiments import Choice, Experiment
from kvtier.prefetch.events import Trigger

_HOST_GB = 64  # of L2 a rank where a pool stands behind it: only an L2 larger than L1 writes anything on
_GB = 1e9
_KINDS = (("moved_bytes", "wasted_bytes"), ("warmed_bytes", "warm_wasted_bytes"), ("recalled_bytes", "recall_wasted_bytes"))


def triggers_of(word: str) -> frozenset[Trigger]:
    """`on` for all, `off` for none, or a trigger's name for that one. Raises `ValueError`."""
    if word in ("on", "off"):
        return frozenset(Trigger) if word == "on" else frozenset()
    if word not in set(Trigger):
        raise ValueError(f"--prefetch knows no {word!r}: choose from on, off, {', '.join(Trigger)}")
    return frozenset((Trigger(word),))


def prefetch_arms(experiments: Mapping[str, Experiment], words: Sequence[str]) -> dict[str, Experiment]:
    """Every experiment in every arm. A label of "" leaves the word alone. Raises `ValueError`, also where no pool is shared."""
    if not words:
        raise ValueError(f"--prefetch names nothing: choose from on, off, {', '.join(Trigger)}")
    triggers = [triggers_of(word) for word in words]
    disks = [label for label, experiment in experiments.items() if experiment.cluster.ssd_pages]
    if any(triggers) and disks:
        raise ValueError(f"--prefetch is not simulated with SSDs: leave out --configs {','.join(disks)}")
    without = [label for label, experiment in experiments.items() if not experiment.cluster.pool_pages]
    if without:
        pools = ",".join(label for label in experiments if label not in without)
        fix = f": give --configs {pools}" if pools else ""
        raise ValueError(f"--prefetch wants a shared pool, and {', '.join(without) or '--host-gb 0'} has none{fix}")
    return {f"{label} {word}".strip(): _arm(each, word) for label, each in experiments.items() for word in words}


def pooled(build: Callable[[Choice], Experiment], choice: Choice) -> Experiment:
    """With a shared pool as large as L2's DRAM; L2 large enough to write to it where `choice` leaves its size open."""
    if choice.host_gb is None:
        choice = msgspec.structs.replace(choice, host_gb=_HOST_GB)
    experiment = build(choice)
    cluster = experiment.cluster
    engines = msgspec.structs.replace(cluster.engines, pool_gb_per_accelerator=cluster.deployment.host_gb_per_accelerator)
    return msgspec.structs.replace(experiment, cluster=msgspec.structs.replace(cluster, engines=engines))


def prefetch_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Bytes of all triggers together, from the run's first second on."""
    table = Table(title="prefetch", title_justify="left")
    sizes = ("staged GB", "wasted", "warmed GB", "wasted", "recalled GB", "wasted")
    for column in ("", *sizes, "ms saved, predicted", "jobs by their end"):
        table.add_column(column, no_wrap=True)
    for label, found in results.items():
        tallies = list((found.get("prefetch") or {}).values())
        ends: dict[str, int] = {}
        for tally in tallies:
            for state, count in tally["jobs"].items():
                ends[state] = ends.get(state, 0) + count
        table.add_row(
            label,
            *(cell for moved, wasted in _KINDS for cell in _cells(_total(tallies, moved), _total(tallies, wasted))),
            f"{_total(tallies, 'saved_ms'):,.0f}",
            ", ".join(f"{count} {state}" for state, count in sorted(ends.items())),
        )
    return table


def moved_gb(figures: Mapping[str, Any]) -> tuple[float, float]:
    """Of one run, by all triggers and in all ways; and what of that was for nothing."""
    tallies = list((figures.get("prefetch") or {}).values())
    moved = sum(_total(tallies, name) for name, _ in _KINDS)
    wasted = sum(_total(tallies, name) for _, name in _KINDS)
    return moved / _GB, wasted / _GB


def _arm(experiment: Experiment, word: str) -> Experiment:
    settings = msgspec.structs.replace(experiment.settings, prefetch=triggers_of(word))
    return msgspec.structs.replace(experiment, settings=settings)


def _total(tallies: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(tally[name]) for tally in tallies)


def _cells(size_bytes: float, wasted_bytes: float) -> tuple[str, str]:
    return f"{size_bytes / _GB:,.1f}", f"{100 * wasted_bytes / size_bytes:.0f} %" if size_bytes else "-"
