"""The simulated pool: its workers, what their engines are in truth, and what a gateway is told of them at the start.

The truth goes to the engine models alone. The gateway starts from the same data sheet with every figure off by up to 30 %.
"""

from __future__ import annotations

import random
import re

import msgspec

from costmodel.hardware import HardwarePrior
from costmodel.roofline import Accelerator, Deployment, ModelShape, host_tokens, kv_tokens, prior
from costmodel.values import Link, Role, WorkerKey
from engine_adapters.emulator.model.params import EngineParams, EngineRole

_PAIR = re.compile(r"(?P<prefills>[1-9]\d*)P(?P<decodes>[1-9]\d*)D", re.IGNORECASE)
_UNIFIED = re.compile(r"(?P<unified>[1-9]\d*)U", re.IGNORECASE)
_MEASURED_THREADS = 4
_ENGINE_ROLES = {Role.PREFILL: EngineRole.PREFILL, Role.DECODE: EngineRole.DECODE, Role.UNIFIED: EngineRole.UNIFIED}


class Topology(msgspec.Struct, frozen=True):
    """How many workers of each role."""

    prefills: int = 0
    decodes: int = 0
    unified: int = 0

    @property
    def disaggregated(self) -> bool:
        return self.unified == 0

    @property
    def workers(self) -> int:
        return self.prefills + self.decodes + self.unified

    def roles(self) -> dict[WorkerKey, Role]:
        """Prefills first; names as `p0`, `d0`, `u0`."""
        found = {WorkerKey(f"p{i}"): Role.PREFILL for i in range(self.prefills)}
        found |= {WorkerKey(f"d{i}"): Role.DECODE for i in range(self.decodes)}
        return found | {WorkerKey(f"u{i}"): Role.UNIFIED for i in range(self.unified)}


def parse_topology(text: str) -> Topology:
    """`1P2D` or `8U`. Raises `ValueError` otherwise."""
    match = _PAIR.fullmatch(text) or _UNIFIED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no topology: write 1P2D for prefill and decode workers, or 8U for unified ones")
    return Topology(**{role: int(count) for role, count in match.groupdict().items()})


class Engines(msgspec.Struct, frozen=True):
    """How every engine of the cluster is set up, beyond what hardware and model say."""

    page_tokens: int = 64
    chunk_tokens: int = 16_384
    max_running: int = 128
    decode_memory_fraction: float = 0.0  # of HBM on decode workers; 0 = as on the others
    pool_gb_per_accelerator: float = 0.0  # of DRAM, for a prefill or unified worker's share of L3; 0 = no L3
    ssd_gb_per_node: float = 0.0  # L4 behind that share; 0 = none
    copy_cu_share: float = 0.0  # of compute units, busy with L2 to L1 copies instead of prefill
    copy_threads: int = 4  # that copy from L3 on the same node to L2
    pool_read_speed: float = 1.0  # a factor on such copies; very large: an oracle that makes them free


class Cluster(msgspec.Struct, frozen=True):
    """All that is true of a pool."""

    topology: Topology
    accelerator: Accelerator
    model: ModelShape
    deployment: Deployment
    engines: Engines = Engines()

    @property
    def truth(self) -> HardwarePrior:
        return prior(self.accelerator, self.model, self.deployment)

    @property
    def usd_per_hour(self) -> float:
        return self.topology.workers * self.deployment.accelerators * self.accelerator.usd_per_hour

    @property
    def pool_pages(self) -> int:
        """What one node's share of L3 holds: each page once, whatever the ranks."""
        size_bytes = self.engines.pool_gb_per_accelerator * self.deployment.accelerators * 1e9
        return int(size_bytes / (self.truth.kv_bytes_per_token * self.engines.page_tokens))

    @property
    def ssd_pages(self) -> int:
        return int(self.engines.ssd_gb_per_node * 1e9 / (self.truth.kv_bytes_per_token * self.engines.page_tokens))

    @property
    def pool_local(self) -> Link:
        """Copies between host memories scale with their threads up to the four that were measured; assumed."""
        link, speed = self.truth.pool_local, self.engines.pool_read_speed
        threads = min(1.0, self.engines.copy_threads / _MEASURED_THREADS)
        return Link(link.latency_ms / speed, link.bytes_per_ms * threads * speed)

    def engine_params(self, role: Role) -> EngineParams:
        truth, engines, deployment = self.truth, self.engines, self.deployment
        l2_tokens = 0 if role is Role.DECODE else host_tokens(self.model, deployment)
        if role is Role.DECODE and engines.decode_memory_fraction:
            deployment = msgspec.structs.replace(deployment, memory_fraction=engines.decode_memory_fraction)
        return EngineParams(
            role=_ENGINE_ROLES[role],
            page_tokens=engines.page_tokens,
            kv_tokens=kv_tokens(self.accelerator, self.model, deployment),
            host_kv_tokens=l2_tokens,
            max_running=engines.max_running,
            chunk_tokens=engines.chunk_tokens,
            max_prefill_tokens=engines.chunk_tokens,
            context_tokens=self.model.context_tokens,
            kv_bytes_per_token=round(truth.kv_bytes_per_token),
            prefill_base_ms=truth.prefill.base_ms,
            prefill_ms_per_token=truth.prefill.ms_per_token,
            prefill_ms_per_token2=truth.prefill.ms_per_token2,
            decode_base_ms=truth.decode.itl_base_ms,
            decode_ms_per_running=truth.decode.itl_ms_per_running,
            host_write_bytes_per_ms=truth.host.bytes_per_ms,
            load_back_bytes_per_ms=truth.host.bytes_per_ms,
            load_back_base_ms=truth.host.latency_ms,
            load_back_compute_share=engines.copy_cu_share,
            transfer_bytes_per_ms=truth.transfer.bytes_per_ms,
            transfer_base_ms=truth.transfer.latency_ms,
        )


def misjudge(truth: HardwarePrior, rng: random.Random, error: float) -> HardwarePrior:
    """What a gateway believes at first: every figure off by a factor of its own, from 1 - `error` to 1 + `error`."""

    def off(value: float) -> float:
        return value * rng.uniform(1 - error, 1 + error)

    def link(known: Link) -> Link:
        return Link(known.latency_ms, off(known.bytes_per_ms))

    prefill, decode = truth.prefill, truth.decode
    return HardwarePrior(
        prefill=type(prefill)(off(prefill.base_ms), off(prefill.ms_per_token), off(prefill.ms_per_token2)),
        decode=type(decode)(off(decode.itl_base_ms), off(decode.itl_ms_per_running)),
        host=link(truth.host),
        pool_local=link(truth.pool_local),
        pool_remote=link(truth.pool_remote),
        ssd=link(truth.ssd),
        transfer=link(truth.transfer),
        kv_bytes_per_token=truth.kv_bytes_per_token,
    )
