"""What an embedded pool consists of, and the configuration that a gateway in front of it needs. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from costmodel.values import Role
from engine_adapters.launch.environments import ROOT
from router.config.tree import (
    Config,
    ListenConfig,
    LogConfig,
    PolicyConfig,
    PoolConfig,
    PromptConfig,
    ThreadsConfig,
    WorkerConfig,
)

TINY_MODEL = ROOT / "configs" / "models" / "tiny-agent"
MODEL_NAME = "tiny-agent"
HOST = "127.0.0.1"


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


def gateway_config(spec: PoolSpec, gateway: GatewaySpec, members: tuple[Member, ...]) -> Config:
    pool = PoolConfig(
        name="embedded",
        unified=_workers(members, Role.UNIFIED),
        prefill=_workers(members, Role.PREFILL),
        decode=_workers(members, Role.DECODE),
        prompt=PromptConfig(model_dir=str(spec.model_dir)),
    )
    return Config(
        listen=ListenConfig(host=gateway.host, port=gateway.port, drain_s=gateway.drain_s),
        pools=(pool,),
        policy=PolicyConfig(name=gateway.policy),
        threads=ThreadsConfig(resume_gap_s=gateway.resume_gap_s),
        log=LogConfig(turns=True),
    )


def _workers(members: tuple[Member, ...], role: Role) -> tuple[WorkerConfig, ...]:
    return tuple(
        WorkerConfig(url=member.url, name=member.name, bootstrap_port=member.bootstrap_port)
        for member in members
        if member.role is role
    )
