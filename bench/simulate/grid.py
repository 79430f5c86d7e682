"""How the article's first experiment comes out under other assumptions than ours: one varied at a time, or all with all.

The article tells neither its tensor-parallel width nor its KV type nor prefill's HBM pool; MFU is read from elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

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
