"""First beliefs about a worker from data sheets: what a model costs to compute and to keep, and what a machine can do.

Plain arithmetic on values that the hardware and model YAML spell out; every result is a prior that calibration replaces. It
reads no files and knows no measured worker.

    prefill of n tokens = gflop_per_token n + attention_mflop_per_token2 n^2 / 1e3, at `mfu` of all accelerators' dense peak
    decode step         = step_ms + per request (KV of its context + its share of expert weights) / HBM bandwidth
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from costmodel.hardware import BYTES_PER_MS_PER_GBS, HardwarePrior
from costmodel.values import DecodeRates, Link, PrefillRates

_LATENCY_MS = HardwarePrior()  # links' latencies are no data sheet's: the project's own priors stand
_SMALLEST, _LARGEST = 1e-12, 1e12  # beyond any machine, in any unit here
MFU = 0.4  # share of the dense peak that prefill reaches; assumed
HBM_SHARE = 0.7  # of the data sheet's bandwidth that decode reaches; assumed
DECODE_CONTEXT_TOKENS = 64_000  # for which one decode request's share of a step is stated


class DataType(StrEnum):
    """What weights, KV and matrix products are made of."""

    FP4 = "fp4"
    FP8 = "fp8"
    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def element_bytes(self) -> float:
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {DataType.FP4: 0.5, DataType.FP8: 1.0, DataType.BF16: 2.0, DataType.FP32: 4.0}


class DeploymentError(ValueError):
    """Machine, model and deployment do not go together. `key` is the deployment's that would mend it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _require_amounts(described: msgspec.Struct, may_be_zero: Iterable[str]) -> None:
    """Every number, also those by data type, is above 0 (or 0 where it `may_be_zero`) and no larger than any machine's. Raises
    ValueError that names the key."""
    for key, value in msgspec.structs.asdict(described).items():
        amounts = value.items() if isinstance(value, dict) else [("", value)]
        if not amounts:
            raise ValueError(f"{key} is empty: one amount is needed")
        for kind, amount in amounts:
            if isinstance(amount, str | bool) or (amount == 0 and key in may_be_zero):
                continue
            if not _SMALLEST <= amount <= _LARGEST:
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
    expert_gelements_per_request: float  # that one more decoding request makes a step read; 0 for dense models
    weights_gb: dict[str, float]  # by data type
    context_tokens: int

    def __post_init__(self) -> None:
        _require_amounts(self, may_be_zero=("attention_mflop_per_token2", "expert_gelements_per_request"))


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one worker runs a model. Everything here may be overridden; nothing here is measured."""

    accelerators: int
    compute_type: str
    weight_type: str
    kv_element_bytes: float
    mfu: float = MFU
    memory_fraction: float = 0.85  # of HBM, for weights and KV together
    host_gb_per_accelerator: float = 0.0  # of DRAM, for L2
    decode_context_tokens: int = DECODE_CONTEXT_TOKENS
    hbm_share: float = HBM_SHARE

    def __post_init__(self) -> None:
        for key in ("accelerators", "mfu", "memory_fraction", "kv_element_bytes", "hbm_share"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} must be positive, not {getattr(self, key)}")


def compute_type(accelerator: Accelerator, weight_type: DataType) -> DataType:
    """What matrices are multiplied as, where nobody says: the narrowest type that the accelerator has and that is no narrower
    than the weights, nor than fp8, since attention and activations are no fp4. Raises `DeploymentError` where it has none."""
    least = max(weight_type.element_bytes, DataType.FP8.element_bytes)
    wide_enough = [each for each in DataType if each in accelerator.tflops and each.element_bytes >= least]
    if not wide_enough:
        raise DeploymentError(
            "compute_type",
            f"{accelerator.name} has no tflops as wide as weights in {weight_type.value}: "
            f"choose one of {', '.join(sorted(accelerator.tflops))}",
        )
    return min(wide_enough, key=lambda each: each.element_bytes)


def kv_bytes_per_token(model: ModelShape, deployment: Deployment) -> float:
    """All layers of one token, once."""
    return model.kv_elements_per_token * deployment.kv_element_bytes


def kv_tokens(accelerator: Accelerator, model: ModelShape, deployment: Deployment) -> int:
    """What one worker's HBM holds beside the weights. Raises `DeploymentError` when the weights alone do not fit."""
    weights_gb = _by_type(model.weights_gb, deployment.weight_type, "weight_type", f"{model.name}: weights_gb")
    free_gb = accelerator.hbm_gb * deployment.memory_fraction - weights_gb / deployment.accelerators
    if free_gb <= 0:
        raise DeploymentError(
            "accelerators",
            f"{model.name} as {deployment.weight_type} on {deployment.accelerators} x {accelerator.name} "
            "leaves no memory for KV: use more accelerators or a smaller weight type",
        )
    return int(free_gb * 1e9 / _bytes_per_rank(model, deployment))


def host_tokens(model: ModelShape, deployment: Deployment) -> int:
    """What one worker's L2 holds; every rank keeps its own copy of a replicated KV."""
    return int(deployment.host_gb_per_accelerator * 1e9 / _bytes_per_rank(model, deployment))


def prior(accelerator: Accelerator, model: ModelShape, deployment: Deployment) -> HardwarePrior:
    """Rates and links of one worker. A sharded KV moves over all its ranks' links at once, a replicated one over each. Raises
    `DeploymentError` where the accelerator does not compute in such a type."""
    bytes_per_token = kv_bytes_per_token(model, deployment)
    lanes = bytes_per_token / _bytes_per_rank(model, deployment)
    tflops = _by_type(accelerator.tflops, deployment.compute_type, "compute_type", f"{accelerator.name}: tflops")
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
    expert_gb = model.expert_gelements_per_request * DataType(deployment.weight_type).element_bytes / deployment.accelerators
    return (kv_gb + expert_gb) / (accelerator.hbm_gb_per_s * deployment.hbm_share) * 1e3


def _bytes_per_rank(model: ModelShape, deployment: Deployment) -> float:
    ranks = 1 if model.kv_replicated else deployment.accelerators
    return kv_bytes_per_token(model, deployment) / ranks


def _link(latency: Link, gb_per_s: float, lanes: float) -> Link:
    return Link(latency.latency_ms, gb_per_s * lanes * BYTES_PER_MS_PER_GBS)


def _by_type(table: dict[str, float], name: str, key: str, whose: str) -> float:
    if name not in table:
        raise DeploymentError(key, f"{whose} knows no '{name}': choose one of {', '.join(sorted(table))}")
    return table[name]
