"""How the article's first experiment comes out under other assumptions than ours: one varied at a time, or all with all.

The article tells neither its tensor-parallel width nor its KV type nor prefill's HBM pool; MFU is read from elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from bench.simulate.experiments import Choice, Experiment, exp1_experiments
from costmodel.roofline import Deployment

_WIDTHS, _KV_TYPES, _HBM, _MFU = (8, 4), (("fp8", 1.0), ("bf16", 2.0)), (1.0, 0.5, 2.0), (1.0, 0.5, 1.5)


class Assumption(msgspec.Struct, frozen=True):
    """`hbm` and `mfu` are factors of the frozen values."""

    ranks: int = 8
    kv_type: str = "fp8"
    kv_element_bytes: float = 1.0
    hbm: float = 1.0
    mfu: float = 1.0

    @property
    def name(self) -> str:
        return f"TP{self.ranks} {self.kv_type} HBM x{self.hbm:g} MFU x{self.mfu:g}"


def assumptions(full: bool) -> list[Assumption]:
    """The frozen one first; without `full` each other differs from it in one thing."""
    every = [
        Assumption(ranks, kv_type, size, hbm, mfu)
        for ranks, (kv_type, size), hbm, mfu in itertools.product(_WIDTHS, _KV_TYPES, _HBM, _MFU)
    ]
    return every if full else [each for each in every if _differences(each) <= 1]


def grid(choice: Choice, seed: int, full: bool, configs: list[str]) -> Iterator[tuple[Assumption, dict[str, Experiment]]]:
    base = exp1_experiments(choice, seed, configs)
    for each in assumptions(full):
        yield each, {label: _under(experiment, each) for label, experiment in base.items()}


def grid_table(results: Mapping[str, Mapping[str, Any]], configs: Sequence[str], title: str) -> Table:
    """A row a point: every configuration's p99 TTFT, first-call hit and throughput, and their order by p99, best first."""
    table = Table(title=title, title_justify="left")
    names = "/".join(configs)
    table.add_column("assumption", no_wrap=True)
    for column in (f"p99 TTFT {names}, s", f"first-call hit {names}, %", f"ktok/s {names}", "order of p99"):
        table.add_column(column, no_wrap=True)
    for each in dict.fromkeys(label.rpartition(" ")[0] for label in results):
        found = {name: results[f"{each} {name}"] for name in configs}
        if not all(figures["turns"] for figures in found.values()):
            table.add_row(each, "-")
            continue
        p99_s = {name: figures["ttft_s"]["p99"] for name, figures in found.items()}
        table.add_row(
            each,
            " / ".join(f"{value:.2f}" for value in p99_s.values()),
            " / ".join(_percent(figures["first_call_hit"]) for figures in found.values()),
            " / ".join(f"{figures['tokens_per_s'] / 1000:.0f}" for figures in found.values()),
            " < ".join(sorted(configs, key=lambda name: p99_s[name])),
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def _differences(each: Assumption) -> int:
    frozen = Assumption()
    return sum(getattr(each, name) != getattr(frozen, name) for name in ("ranks", "kv_type", "hbm", "mfu"))


def _under(experiment: Experiment, each: Assumption) -> Experiment:
    cluster = experiment.cluster
    known = cluster.deployment
    deployment = msgspec.structs.replace(
        known,
        accelerators=each.ranks,
        kv_element_bytes=each.kv_element_bytes,
        mfu=known.mfu * each.mfu,
        memory_fraction=_fraction(experiment, known, each),
    )
    return msgspec.structs.replace(experiment, cluster=msgspec.structs.replace(cluster, deployment=deployment))


def _fraction(experiment: Experiment, known: Deployment, each: Assumption) -> float:
    """The same HBM for KV a rank, times the factor, beside what the weights take at this width."""
    hbm_gb = experiment.cluster.accelerator.hbm_gb
    weights_gb = experiment.cluster.model.weights_gb[known.weight_type]
    kv_gb = known.memory_fraction * hbm_gb - weights_gb / known.accelerators
    return (weights_gb / each.ranks + kv_gb * each.hbm) / hbm_gb
