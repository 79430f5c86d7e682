"""Starts the workers of an embedded pool, emulated or real, and always ends them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from costmodel.values import Role
from engine_adapters.launch.pool import Pool, launch_pd_pool
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import EngineProcess, start_process
from loadback.pool_spec import (
    DECODE_BASE_MS,
    HOST,
    KV_BYTES_PER_TOKEN,
    MODEL_NAME,
    PREFILL_BASE_MS,
    PREFILL_MS_PER_TOKEN,
    EngineChoice,
    Member,
    PoolSpec,
)

EMULATOR_READY_S = 60.0
PORTS_PER_WORKER = 4  # HTTP, events, replay, bootstrap
L2_TOKENS = 1_000_000


@asynccontextmanager
async def running_engines(spec: PoolSpec, log_dir: Path, l3_socket: Path | None) -> AsyncIterator[tuple[Member, ...]]:
    """Every member answers when this yields. Raises what the launcher raises when one does not start.

    `l3_socket`: of the node agent whose pool emulated prefill or unified workers share.
    """
    if spec.engine is EngineChoice.SGLANG:
        async with launch_pd_pool(spec.model_dir, log_dir, prefills=spec.prefills, decodes=spec.decodes) as pool:
            yield real_members(spec, pool)
    else:
        async with AsyncExitStack() as exits:
            yield await _start_emulators(spec, log_dir, l3_socket, exits)


def names(roles: Iterable[Role]) -> list[str]:
    """p0, p1, d0, u0: short, since they stand in headers and tables."""
    counts: dict[Role, int] = {}
    result = []
    for role in roles:
        number = counts.setdefault(role, 0)
        counts[role] += 1
        result.append(f"{role.value[0]}{number}")
    return result


def real_members(spec: PoolSpec, pool: Pool) -> tuple[Member, ...]:
    """Every launched server has a bootstrap port; only prefill servers are reached by theirs."""
    members = []
    for name, server in zip(names(spec.roles()), pool.servers, strict=True):
        role, process = server.spec.role, server.process
        port = server.spec.bootstrap_port if role is Role.PREFILL else None
        members.append(Member(name, role, server.url, process.pid, process.log, port))
    return tuple(members)


async def _start_emulators(spec: PoolSpec, log_dir: Path, l3_socket: Path | None, exits: AsyncExitStack) -> tuple[Member, ...]:
    roles = spec.roles()
    ports = free_ports(PORTS_PER_WORKER * len(roles))
    processes: list[EngineProcess] = []
    members = []
    for index, (name, role) in enumerate(zip(names(roles), roles, strict=True)):
        own = ports[index * PORTS_PER_WORKER :][:PORTS_PER_WORKER]
        log = log_dir / f"{name}.log"
        socket = None if role is Role.DECODE else l3_socket
        command = emulator_command(spec, role, own, socket)
        process = await start_process(name, f"http://{HOST}:{own[0]}", command, {}, log)
        exits.push_async_callback(process.stop)
        processes.append(process)
        bootstrap_port = own[3] if role is Role.PREFILL else None
        members.append(Member(name, role, process.url, process.pid, log, bootstrap_port, pooled=socket is not None))
    async with asyncio.TaskGroup() as group:
        for process in processes:
            group.create_task(process.ready("/health", EMULATOR_READY_S))
    return tuple(members)


def emulator_command(spec: PoolSpec, role: Role, ports: Sequence[int], l3_socket: Path | None = None) -> list[str]:
    """A host tier and a cache on decode, as the engine contract wants them; room for an agent's long prompts."""
    http_port, kv_port, replay_port, bootstrap_port = ports
    options: dict[str, object] = {
        "--role": role.value,
        "--host": HOST,
        "--port": http_port,
        "--kv-port": kv_port,
        "--kv-replay-port": replay_port,
        "--bootstrap-port": bootstrap_port,
        "--served-model-name": MODEL_NAME,
        "--model-dir": spec.model_dir,
        "--l2-tokens": L2_TOKENS,
        "--context-length": spec.context_tokens,
        "--kv-bytes-per-token": KV_BYTES_PER_TOKEN,
        "--prefill-base-ms": PREFILL_BASE_MS,
        "--prefill-ms-per-token": PREFILL_MS_PER_TOKEN,
        "--decode-base-ms": DECODE_BASE_MS,
    }
    if l3_socket is not None:
        options["--l3-socket"] = l3_socket
    words = (str(word) for option in options.items() for word in option)
    return [sys.executable, "-P", "-m", "engine_adapters.emulator", *words, "--decode-radix-cache"]
