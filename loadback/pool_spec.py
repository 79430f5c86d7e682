"""What an embedded pool consists of, and the configuration that a gateway in front of it needs. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from costmodel.values import Role
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.launch.environments import ROOT
from kvtier.prefetch.params import Mode
from kvtier.wire.messages import Peer
from router.config.tree import (
    AgentPeerConfig,
    Config,
    HardwareConfig,
    LinkConfig,
    ListenConfig,
    LogConfig,
    PolicyConfig,
    PoolConfig,
    PrefetchConfig,
    PromptConfig,
    ThreadsConfig,
    WorkerConfig,
)

TINY_MODEL = ROOT / "configs" / "models" / "tiny-agent"
MODEL_NAME = "tiny-agent"
POOL_NAME = "embedded"
HOST = "127.0.0.1"
NODE = "n0"  # the one that all prefill workers of an embedded pool run on
KV_BYTES_PER_TOKEN = 4_096  # of the emulated model: small, since they really move
PAGE_BYTES = KV_BYTES_PER_TOKEN * EngineParams().page_tokens
# Slower than the emulator's defaults, as a large model is: what its wire takes on a small machine then matters little.
PREFILL_BASE_MS = 12.0
PREFILL_MS_PER_TOKEN = 0.15
DECODE_BASE_MS = 12.0
EMULATED = HardwareConfig(
    prefill_base_ms=PREFILL_BASE_MS,
    prefill_ms_per_token=PREFILL_MS_PER_TOKEN,
    itl_base_ms=DECODE_BASE_MS,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    l3_link=LinkConfig(latency_ms=3.0, gb_per_s=1.0),
    l4_link=LinkConfig(latency_ms=5.0, gb_per_s=0.5),
)


class EngineChoice(StrEnum):
    EMULATOR = "emulator"  # speaks SGLang's wire, computes nothing
    SGLANG = "sglang"  # the real one, on this machine's CPU


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """`decodes` = 0 makes a pool of unified workers."""

    engine: EngineChoice = EngineChoice.EMULATOR
    prefills: int = 2
    decodes: int = 1
    model_dir: Path = TINY_MODEL

    def roles(self) -> tuple[Role, ...]:
        if self.decodes == 0:
            return (Role.UNIFIED,) * self.prefills
        return (Role.PREFILL,) * self.prefills + (Role.DECODE,) * self.decodes

    @property
    def context_tokens(self) -> int:
        """The longest prompt that its workers take."""
        return 262_144 if self.engine is EngineChoice.EMULATOR else 32_768

    @property
    def title(self) -> str:
        shape = f"{self.prefills}P{self.decodes}D" if self.decodes else f"{self.prefills} unified"
        return f"{shape} of {'emulated' if self.engine is EngineChoice.EMULATOR else 'real'} SGLang"


@dataclass(frozen=True, slots=True)
class Member:
    """One running worker of an embedded pool."""

    name: str
    role: Role
    url: str
    pid: int
    log: Path
    bootstrap_port: int | None = None
    pooled: bool = False  # the node agent's pool is its third tier


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    host: str = HOST
    port: int = 8000
    policy: str = "cost"
    resume_gap_s: float = 60.0
    drain_s: float = 10.0  # a person waits at the terminal

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"


def gateway_config(spec: PoolSpec, gateway: GatewaySpec, members: tuple[Member, ...], agent: Peer | None) -> Config:
    """`agent` holds the pool that the prefill or unified workers share; without one each has its own tiers alone."""
    pool = PoolConfig(
        name=POOL_NAME,
        unified=_workers(members, Role.UNIFIED),
        prefill=_workers(members, Role.PREFILL),
        decode=_workers(members, Role.DECODE),
        prompt=PromptConfig(model_dir=str(spec.model_dir)),
        hardware=EMULATED if spec.engine is EngineChoice.EMULATOR else HardwareConfig(),
    )
    return Config(
        listen=ListenConfig(host=gateway.host, port=gateway.port, drain_s=gateway.drain_s),
        pools=(pool,),
        policy=PolicyConfig(name=gateway.policy),
        threads=ThreadsConfig(resume_gap_s=gateway.resume_gap_s),
        agents=(AgentPeerConfig(node=agent.node, host=agent.host, port=agent.port),) if agent else (),
        prefetch=PrefetchConfig(mode=Mode.ON if agent else Mode.OFF),
        log=LogConfig(turns=True),
    )


def _workers(members: tuple[Member, ...], role: Role) -> tuple[WorkerConfig, ...]:
    return tuple(worker_config(member) for member in members if member.role is role)


def worker_config(member: Member) -> WorkerConfig:
    node = NODE if member.pooled else None
    return WorkerConfig(url=member.url, name=member.name, node=node, bootstrap_port=member.bootstrap_port)
