"""The experiments by name: each one a workload, a pool and what is fixed about the run. Nothing here runs anything.

Where a published setting is unknown the figure is assumed and said so in docs/simulator.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.simulate.churn import Change, require_known
from bench.simulate.clients import Rota
from bench.simulate.cluster import Cluster, Engines, parse_topology
from bench.simulate.generated import fork, programbench
from bench.simulate.settings import Settings
from bench.simulate.traces import mooncake, weka
from bench.simulate.workload import Workload
from costmodel.params import CostParams, PolicyParams
from costmodel.roofline import Accelerator, DataType, Deployment, compute_type, kv_tokens
from kvtier.prefetch.events import Trigger
from router.config.data_sheets import load_accelerator, load_model

Named = TypeVar("Named")


class Choice(msgspec.Struct, frozen=True):
    """What the command line may change about any experiment; empty or 0 keeps the experiment's own."""

    topology: str = ""
    hardware: str = ""
    model: str = ""
    weights: DataType | None = None
    horizon_s: float = 0.0
    host_gb: float | None = None
    drain_share: float | None = None
    path: Path | None = None
    cost: CostParams = CostParams()
    mfu: float = 0.0
    churn: tuple[Change, ...] = ()
    hindsight: float = 0.0
    predict: bool = True
    assumed: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Raises `ValueError` for an option that is not finite: no run would end, no memory hold it."""
        for option, value in (("--horizon-s", self.horizon_s), ("--host-gb", self.host_gb or 0.0)):
            if not math.isfinite(value):
                raise ValueError(f"{option} wants a finite number, not {value}")

    def apply(self, settings: Settings) -> Settings:
        """What it changes whatever the experiment."""
        return msgspec.structs.replace(
            settings,
            horizon_s=self.horizon_s or settings.horizon_s,
            drain_share=self.drain_share or settings.drain_share,
            churn=self.churn,
            hindsight_share=self.hindsight,
            predict_on_route=self.predict,
            **self.assumed,
        )


class Restore(msgspec.Struct, frozen=True):
    """How a rank's DRAM is split between L2 and its share of L3, in GB, and how KV comes back from it."""

    l2_gb: float
    l3_gb: float
    copy_cu_share: float = 32 / 256  # of compute units, busy with L2 to L1 copies instead of prefill
    copy_threads: int = 1  # that copy from L3 on the same node to L2
    prefetch: bool = False
    read_speed: float = 1.0
    hold_ms: float = 0.0
    ssd_gb: float = 0.0  # of each node, behind its share of L3


class Machine(msgspec.Struct, frozen=True):
    """A worker as the command line names it."""

    topology: str
    hardware: str
    model: str
    deployment: Deployment


class Experiment(msgspec.Struct, frozen=True):
    """One comparison."""

    name: str
    workload: Workload
    cluster: Cluster
    settings: Settings
    params: PolicyParams = PolicyParams()


# Kimi K2 on 8 MI355X as in the UMBP article: MXFP4 weights, fp8 KV, compute against the fp8 peak, since attention and
# activations are no fp4. `mfu` is InferenceX's 2,687 tokens/s an accelerator (8k in, 1k out, MXFP4), read as input and output
# together with half of the time spent on prefill: 19.1k input tokens/s x 71 GFLOP x 2 of 40.3 PFLOP/s. Prefill's HBM pool is
# unpublished; HiCache wants the host's larger than it, and configuration B has 64 GB there, so 48 GB are assumed:
# (594 / 8 + 48) / 288 of HBM. Decode workers use 0.85.
_MI355X = Deployment(8, "fp8", "fp4", 1.0, mfu=0.07, memory_fraction=0.4245, host_gb_per_accelerator=96)
_MI355X_ENGINES = Engines(decode_memory_fraction=0.85)
_HOLD_MS = 2000.0  # `admission.hold_ms` as shipped
# Configurations of the article's experiments, all at equal DRAM a rank. What a restore costs before the article's optimisation
# is unpublished; assumed: the copy kernel takes 32 of 256 CUs from prefill, one thread copies a quarter of what four do, and a
# read from L3 starts when the request reaches the engine. With it: copies by SDMA, four threads, reads ahead of the request.
_EXP1 = {
    "A": Restore(l2_gb=96, l3_gb=0),
    "B": Restore(l2_gb=64, l3_gb=32),
    "C": Restore(l2_gb=64, l3_gb=32, copy_cu_share=0.0, copy_threads=4, prefetch=True),
    # No configurations of the article. F: C with reads from L3 that take no time and no planner: the most that prefetch could
    # gain. H: C with a gateway that holds turns back, as ours does.
    "F": Restore(l2_gb=64, l3_gb=32, copy_cu_share=0.0, copy_threads=4, read_speed=1e9),
    "H": Restore(l2_gb=64, l3_gb=32, copy_cu_share=0.0, copy_threads=4, prefetch=True, hold_ms=_HOLD_MS),
    "D": Restore(l2_gb=64, l3_gb=32, ssd_gb=1_000),  # not the article's: B with an SSD behind L3
}
_EXP2 = {"A": Restore(l2_gb=192, l3_gb=0), "B": Restore(l2_gb=160, l3_gb=32)}
# Kimi K2 int4 on 8 H200: a third of the KV and two fifths of the compute, so that placement matters at small scale.
_H200 = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.88, host_gb_per_accelerator=32)
# A dense 32B on pairs of H100, bf16: small caches for Mooncake's chat traffic.
_H100_PAIR = Deployment(2, "bf16", "bf16", 2.0, host_gb_per_accelerator=32, decode_context_tokens=12_000)


def known_of(names: Sequence[str], known: Mapping[str, Named], option: str) -> dict[str, Named]:
    """Those of `known` that a command line names. Raises `ValueError` where it names none, or one that there is not."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"knows no {', '.join(unknown)}" if unknown else "names nothing"
        raise ValueError(f"{option} {what}: choose from {', '.join(known)}")
    return {name: known[name] for name in names}


def weka_experiment(choice: Choice, seed: int, concurrency: int, name: str = "weka") -> Experiment:
    """Recorded Claude Code sessions, closed loop. Decode workers must hold every session's context that is in flight."""
    large = concurrency > 64
    cluster = _cluster(Machine("4P4D" if large else "2P2D", "h200", "kimi-k2", _H200), choice)
    workload = weka(choice.path, context_tokens=_context(cluster))
    settings = Settings(horizon_s=3_600 if large else 7_200, warmup_s=600, concurrency=concurrency)
    return Experiment(name, workload, cluster, choice.apply(settings), PolicyParams(choice.cost))


def churn_experiment(choice: Choice, seed: int, concurrency: int) -> Experiment:
    """The same while workers are lost and join as `choice` says. Raises `ValueError` where they cannot."""
    experiment = weka_experiment(choice, seed, concurrency, name="churn")
    require_known(experiment.cluster.topology.roles(), choice.churn, experiment.settings.horizon_s)
    return experiment


def mooncake_experiment(choice: Choice, seed: int, kind: str) -> Experiment:
    """Recorded chat requests, open loop at their own times."""
    cluster = _cluster(Machine("8P4D", "h100", "qwen3-32b", _H100_PAIR), choice, Engines(page_tokens=512))
    workload = mooncake(choice.path, kind=kind, context_tokens=_context(cluster))
    span_s = max(session.start_ms for session in workload.sessions) / 1000
    settings = choice.apply(Settings(horizon_s=span_s, warmup_s=120))
    return Experiment("mooncake", workload, cluster, settings, PolicyParams(choice.cost))


def fork_experiment(choice: Choice, seed: int) -> Experiment:
    """llm-d's fork: bursts of 43 subagents over a 40k prefix, two sessions at once."""
    cluster = _cluster(Machine("4P4D", "h200", "kimi-k2", _H200), choice)
    workload = fork(64, random.Random(f"{seed} workload"), context_tokens=_context(cluster))
    settings = choice.apply(Settings(horizon_s=1_800, concurrency=2))
    return Experiment("fork", workload, cluster, settings, PolicyParams(choice.cost))


def exp1_experiments(choice: Choice, seed: int, names: Sequence[str]) -> dict[str, Experiment]:
    """The article's Experiment 1 by configuration: one prefill worker, 128 sessions."""
    machine = Machine("1P2D", "mi355x", "kimi-k2", _MI355X)
    settings = choice.apply(Settings(horizon_s=3_600, warmup_s=600, concurrency=128))
    return _configurations("exp1", machine, settings, choice, seed, _chosen(_EXP1, names))


def exp2_experiments(choice: Choice, seed: int, names: Sequence[str]) -> dict[str, Experiment]:
    """The article's Experiment 2 by configuration: two prefill workers, 64 of 128 sessions active, forced migration."""
    machine = Machine("2P1D", "mi355x", "kimi-k2", _MI355X)
    settings = Settings(
        horizon_s=3_600,
        warmup_s=600,
        concurrency=128,
        rota=Rota(64, 120_000),
        pin_grow_tokens=256,
    )
    return _configurations("exp2", machine, choice.apply(settings), choice, seed, _chosen(_EXP2, names))


def _configurations(
    name: str, machine: Machine, settings: Settings, choice: Choice, seed: int, restores: Mapping[str, Restore]
) -> dict[str, Experiment]:
    """The same sessions on pools that differ in how their DRAM is split."""
    clusters = {label: _restoring(machine, choice, restore) for label, restore in restores.items()}
    on = frozenset(Trigger)
    each = {
        label: msgspec.structs.replace(
            settings,
            prefetch=on if restore.prefetch else settings.prefetch,
            hold_ms=restore.hold_ms or settings.hold_ms,
        )
        for label, restore in restores.items()
    }
    context = min(_context(cluster) for cluster in clusters.values())
    workload = programbench(1024, random.Random(f"{seed} workload"), context_tokens=context)
    return {
        label: Experiment(name, workload, cluster, each[label], PolicyParams(choice.cost))
        for label, cluster in clusters.items()
    }


def _restoring(machine: Machine, choice: Choice, restore: Restore) -> Cluster:
    deployment = msgspec.structs.replace(machine.deployment, host_gb_per_accelerator=restore.l2_gb)
    engines = msgspec.structs.replace(
        _MI355X_ENGINES,
        pool_gb_per_accelerator=restore.l3_gb,
        copy_cu_share=restore.copy_cu_share,
        copy_threads=restore.copy_threads,
        pool_read_speed=restore.read_speed,
        ssd_gb_per_node=restore.ssd_gb,
    )
    return _cluster(msgspec.structs.replace(machine, deployment=deployment), choice, engines)


def _chosen(restores: Mapping[str, Restore], names: Sequence[str]) -> dict[str, Restore]:
    return known_of(names, restores, "--configs")


def scale_experiment(choice: Choice, seed: int, workers: int) -> Experiment:
    """ProgramBench-shaped sessions over pools of growing size, eight sessions a worker."""
    half = workers // 2
    cluster = _cluster(Machine(f"{half}P{half}D", "h200", "kimi-k2", _H200), choice)
    concurrency = 8 * workers
    horizon_s = choice.horizon_s or {8: 1_800, 64: 600}.get(workers, 150)
    sessions = concurrency + concurrency // 2
    return Experiment(
        "scale",
        programbench(sessions, random.Random(f"{seed} workload"), context_tokens=_context(cluster)),
        cluster,
        choice.apply(Settings(horizon_s, warmup_s=horizon_s / 5, concurrency=concurrency, ramp_s=horizon_s / 10)),
    )


def _cluster(machine: Machine, choice: Choice, engines: Engines | None = None) -> Cluster:
    """Raises `DeploymentError` where machine, model and their types do not go together: before anything runs."""
    accelerator, model = load_accelerator(choice.hardware or machine.hardware), load_model(choice.model or machine.model)
    deployment = _typed(machine.deployment, accelerator, choice.weights)
    if choice.host_gb is not None:
        deployment = msgspec.structs.replace(deployment, host_gb_per_accelerator=choice.host_gb)
    if choice.mfu:
        deployment = msgspec.structs.replace(deployment, mfu=choice.mfu)
    topology = parse_topology(choice.topology or machine.topology)
    cluster = Cluster(topology, accelerator, model, deployment, engines or Engines())
    for role in set(topology.roles().values()):
        cluster.engine_params(role)
    return cluster


def _typed(deployment: Deployment, accelerator: Accelerator, weights: DataType | None) -> Deployment:
    """In other `weights`, or on an accelerator that does not compute as the experiment's does: as a gateway would believe."""
    if weights is None and deployment.compute_type in accelerator.tflops:
        return deployment
    weight_type = weights or DataType(deployment.weight_type)
    computing = compute_type(accelerator, weight_type)
    return msgspec.structs.replace(deployment, weight_type=weight_type.value, compute_type=computing.value)


def _context(cluster: Cluster) -> int:
    """The longest prompt and reply that a worker takes."""
    held = kv_tokens(cluster.accelerator, cluster.model, cluster.deployment)
    return min(cluster.model.context_tokens, held // 2)
