"""A real SGLang prefill/decode pool on this machine: started together, awaited together, always ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.values import Role
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import EngineProcess, EngineStartError
from engine_adapters.launch.sglang import SglangSpec, start_sglang

READY_DEADLINE_S = 300.0
READY_PATH = "/v1/models"

START_ATTEMPTS = 3

_PORTS_PER_SERVER = 5  # HTTP, events, replay, bootstrap, rendezvous


@dataclass(slots=True)
class Server:
    """One started server and what it was started with. `restart` makes it a new incarnation on the same ports."""

    spec: SglangSpec
    process: EngineProcess
    log_dir: Path

    @property
    def url(self) -> str:
        return self.spec.url

    async def restart(self, deadline_s: float = READY_DEADLINE_S) -> None:
        await self.process.stop()
        self.process = await start_sglang(self.spec, self.log_dir)
        await self.process.ready(READY_PATH, deadline_s)


@dataclass(slots=True)
class Pool:
    prefills: tuple[Server, ...]
    decodes: tuple[Server, ...]

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.prefills + self.decodes


@asynccontextmanager
async def launch_pd_pool(
    model_dir: Path,
    log_dir: Path,
    *,
    prefills: int = 2,
    decodes: int = 1,
    base: SglangSpec | None = None,
    ports: Sequence[int] | None = None,
    deadline_s: float = READY_DEADLINE_S,
) -> AsyncIterator[Pool]:
    """Real SGLang `prefills`P`decodes`D with KV events, host tier on prefill and radix cache on decode, over Mooncake on TCP.

    `base` carries settings other than model, ports and role; `ports` must hold five a server. A server takes about 1.6 GB.
    Raises `EngineStartError`, `EngineNotInstalled` or `NoFreePort`; nothing is left running then.
    """
    roles = [Role.PREFILL] * prefills + [Role.DECODE] * decodes
    async with _running(_template(base, model_dir), roles, ports, log_dir, deadline_s) as servers:
        yield Pool(prefills=tuple(servers[:prefills]), decodes=tuple(servers[prefills:]))


@asynccontextmanager
async def launch_unified(
    model_dir: Path, log_dir: Path, *, base: SglangSpec | None = None, deadline_s: float = READY_DEADLINE_S
) -> AsyncIterator[Server]:
    """One real SGLang server that does both, with `base`'s settings."""
    async with _running(_template(base, model_dir), [Role.UNIFIED], None, log_dir, deadline_s) as servers:
        yield servers[0]


def pool_specs(template: SglangSpec, roles: Sequence[Role], ports: Sequence[int] | None = None) -> list[SglangSpec]:
    """`template` once per role, each with five ports of its own (free ones where none are given).

    Raises ValueError for too few ports.
    """
    wanted = len(roles) * _PORTS_PER_SERVER
    chosen = tuple(ports) if ports is not None else free_ports(wanted)
    if len(chosen) < wanted:
        raise ValueError(f"{len(roles)} servers need {wanted} ports, {len(chosen)} were given")
    specs = []
    for index, role in enumerate(roles):
        port, kv_port, replay_port, bootstrap_port, rendezvous_port = chosen[index * _PORTS_PER_SERVER :][:_PORTS_PER_SERVER]
        numbered = replace(template, port=port, kv_port=kv_port, replay_port=replay_port, bootstrap_port=bootstrap_port)
        host_tier = template.host_tier or role is Role.PREFILL
        specs.append(replace(numbered, role=role, rendezvous_port=rendezvous_port, host_tier=host_tier))
    return specs


def _template(base: SglangSpec | None, model_dir: Path) -> SglangSpec:
    return replace(base or SglangSpec(model_dir=model_dir, port=0, kv_port=0, replay_port=0), model_dir=model_dir)


@asynccontextmanager
async def _running(
    template: SglangSpec, roles: Sequence[Role], ports: Sequence[int] | None, log_dir: Path, deadline_s: float
) -> AsyncIterator[list[Server]]:
    """Started, ready and, whatever happens, stopped. Drawn ports that were taken meanwhile are drawn again."""
    servers: list[Server] = []
    try:
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                await _start(pool_specs(template, roles, ports), servers, log_dir, deadline_s)
                break
            except EngineStartError as error:
                if ports is not None or not error.port_taken or attempt == START_ATTEMPTS:
                    raise
                await _stop(servers)
        yield servers
    finally:
        await _stop(servers)


async def _start(specs: Sequence[SglangSpec], servers: list[Server], log_dir: Path, deadline_s: float) -> None:
    """Adds to `servers` one by one, so that a later failure leaves nothing unknown behind; returns when all are ready."""
    for spec in specs:
        servers.append(Server(spec, await start_sglang(spec, log_dir), log_dir))  # noqa: PERF401 - see above
    try:
        async with asyncio.TaskGroup() as waiting:
            for server in servers:
                waiting.create_task(server.process.ready(READY_PATH, deadline_s))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group  # the first to fail is the cause


async def _stop(servers: list[Server]) -> None:
    await asyncio.gather(*(server.process.stop() for server in servers))
    servers.clear()
