"""First beliefs about a worker from data sheets: what a model costs to compute and to keep, and what a machine can do.

Plain arithmetic on values that the hardware and model YAML spell out; every result is a prior that calibration replaces. It
reads no files and knows no measured worker.

    prefill of n tokens = gflop_per_token n + attention_mflop_per_token2 n^2 / 1e3, at `mfu` of all accelerators' dense peak
    decode step         = step_ms + per request (KV of its context + its share of expert weights) / HBM bandwidth
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import msgspec

from costmodel.hardware import BYTES_PER_MS_PER_GBS, HardwarePrior
from costmodel.values import DecodeRates, Link, PrefillRates

_LATENCY_MS = HardwarePrior()  # links' latencies are no data sheet's: the project's own priors stand


_LARGEST = 1e12  # beyond any machine, in any unit here


def _require_amounts(described: msgspec.Struct, may_be_zero: Iterable[str]) -> None:
    """Every number, also those by data type, is above 0 (or 0 where it `may_be_zero`) and no larger than any machine's. Raises
    ValueError that names the key."""
    for key, value in msgspec.structs.asdict(described).items():
        amounts = value.items() if isinstance(value, dict) else [("", value)]
        for kind, amount in amounts:
            if isinstance(amount, str | bool):
                continue
            if not isfinite(amount) or amount < 0 or amount > _LARGEST or (amount == 0 and key not in may_be_zero):
                raise ValueError(f"{key}{f'.{kind}' if kind else ''} is {amount}: a positive number is needed")


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accelerator with its share of a host. Bandwidths are per accelerator and direction."""

    name: str
    hbm_gb: float
    hbm_gb_per_s: float
    tflops: dict[str, float]  # dense peak by data type
    host_gb_per_s: float  # host memory to device
    pool_local_gb_per_s: float  # shared pool on the same node to host memory
    pool_remote_gb_per_s: float  # another node's pool, and prefill to decode
    ssd_gb_per_s: float
    step_ms: float  # one forward's time that no roofline explains: launches, collectives, weights
    usd_per_hour: float

    def __post_init__(self) -> None:
        _require_amounts(self, may_be_zero=("step_ms", "usd_per_hour"))


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, by its architecture."""

    name: str
    gflop_per_token: float
    attention_mflop_per_token2: float  # so that all of n tokens' attention is this times n^2
    kv_elements_per_token: int
    kv_replicated: bool  # each tensor-parallel rank holds all of a token's KV (MLA) rather than its heads' share
    expert_gb_per_request: float  # weights that one more decoding request makes a step read; 0 for dense models
    weights_gb: dict[str, float]  # by data type
    context_tokens: int

    def __post_init__(self) -> None:
        _require_amounts(self, may_be_zero=("attention_mflop_per_token2", "expert_gb_per_request"))


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one worker runs a model. Everything here may be overridden; nothing here is measured."""

    accelerators: int
    compute_type: str
    weight_type: str
    kv_element_bytes: float
    mfu: float = 0.4  # share of the dense peak that prefill reaches; assumed
    memory_fraction: float = 0.85  # of HBM, for weights and KV together
    host_gb_per_accelerator: float = 0.0  # of DRAM, for L2
    decode_context_tokens: int = 64_000  # for which one decode request's share of a step is stated
    hbm_share: float = 0.7  # of the data sheet's bandwidth that decode reaches; assumed

    def __post_init__(self) -> None:
        for key in ("accelerators", "mfu", "memory_fraction", "kv_element_bytes", "hbm_share"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} must be positive, not {getattr(self, key)}")


def kv_bytes_per_token(model: ModelShape, deployment: Deployment) -> float:
    """All layers of one token, once."""
    return model.kv_elements_per_token * deployment.kv_element_bytes


def kv_tokens(accelerator: Accelerator, model: ModelShape, deployment: Deployment) -> int:
    """What one worker's HBM holds beside the weights. Raises `ValueError` when the weights alone do not fit."""
    weights_gb = _by_type(model.weights_gb, deployment.weight_type, "weights_gb") / deployment.accelerators
    free_gb = accelerator.hbm_gb * deployment.memory_fraction - weights_gb
    if free_gb <= 0:
        raise ValueError(
            f"{model.name} as {deployment.weight_type} on {deployment.accelerators} x {accelerator.name} "
            "leaves no memory for KV: use more accelerators or a smaller weight type"
        )
    return int(free_gb * 1e9 / _bytes_per_rank(model, deployment))


def host_tokens(model: ModelShape, deployment: Deployment) -> int:
    """What one worker's L2 holds; every rank keeps its own copy of a replicated KV."""
    return int(deployment.host_gb_per_accelerator * 1e9 / _bytes_per_rank(model, deployment))


def prior(accelerator: Accelerator, model: ModelShape, deployment: Deployment) -> HardwarePrior:
    """Rates and links of one worker. A sharded KV moves over all its ranks' links at once, a replicated one over each."""
    bytes_per_token = kv_bytes_per_token(model, deployment)
    lanes = bytes_per_token / _bytes_per_rank(model, deployment)
    tflops = _by_type(accelerator.tflops, deployment.compute_type, "tflops")
    gflop_per_ms = tflops * deployment.accelerators * deployment.mfu
    return HardwarePrior(
        prefill=PrefillRates(
            base_ms=accelerator.step_ms,
            ms_per_token=model.gflop_per_token / gflop_per_ms,
            ms_per_token2=model.attention_mflop_per_token2 / 1e3 / gflop_per_ms,
        ),
        decode=DecodeRates(accelerator.step_ms, _ms_per_running(accelerator, model, deployment)),
        host=_link(_LATENCY_MS.host, accelerator.host_gb_per_s, lanes),
        pool_local=_link(_LATENCY_MS.pool_local, accelerator.pool_local_gb_per_s, lanes),
        pool_remote=_link(_LATENCY_MS.pool_remote, accelerator.pool_remote_gb_per_s, lanes),
        ssd=_link(_LATENCY_MS.ssd, accelerator.ssd_gb_per_s, 1.0),
        transfer=_link(_LATENCY_MS.transfer, accelerator.pool_remote_gb_per_s, lanes),
        kv_bytes_per_token=bytes_per_token,
    )


def _ms_per_running(accelerator: Accelerator, model: ModelShape, deployment: Deployment) -> float:
    kv_gb = deployment.decode_context_tokens * _bytes_per_rank(model, deployment) / 1e9
    expert_gb = model.expert_gb_per_request / deployment.accelerators
    return (kv_gb + expert_gb) / (accelerator.hbm_gb_per_s * deployment.hbm_share) * 1e3


def _bytes_per_rank(model: ModelShape, deployment: Deployment) -> float:
    ranks = 1 if model.kv_replicated else deployment.accelerators
    return kv_bytes_per_token(model, deployment) / ranks


def _link(latency: Link, gb_per_s: float, lanes: float) -> Link:
    return Link(latency.latency_ms, gb_per_s * lanes * BYTES_PER_MS_PER_GBS)


def _by_type(table: dict[str, float], name: str, key: str) -> float:
    if name not in table:
        raise ValueError(f"{key} knows no {name!r}: choose one of {', '.join(sorted(table))}")
    return table[name]
