"""An embedded pool with the gateway in front: started together, stopped together, gateway first.

The gateway runs as `loadback serve` in a process of its own, from a configuration file like any other, so that what is tried
here is what runs in production.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.reach.node import NodeAgent
from engine_adapters.launch.listening import check_port
from engine_adapters.launch.process import EngineProcess, start_process
from kvtier.wire.messages import Peer
from loadback.engines import running_engines
from loadback.pool_spec import NODE, EngineChoice, GatewaySpec, Member, PoolSpec, gateway_config
from loadback.terminal import progress, say

GATEWAY_READY_S = 60.0
STOP_MARGIN_S = 5.0  # for the gateway, beyond its own drain
DRAM_BYTES = 32 << 20  # less than a demo stores, so that some of it sinks to SSD
SSD_BYTES = 512 << 20
WATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class Stack:
    members: tuple[Member, ...]
    gateway: GatewaySpec
    config_file: Path
    process: EngineProcess

    async def serve_until_told(self) -> bool:
        """True when the task was cancelled, as a signal does; False when the gateway has ended by itself."""
        try:
            while self.process.alive:  # noqa: ASYNC110 - the launcher has no event for it
                await asyncio.sleep(WATCH_S)
        except asyncio.CancelledError:
            say("stopping")
            return True
        say(f"the gateway has ended by itself; its log is {self.process.log}")
        return False


@asynccontextmanager
async def running_stack(spec: PoolSpec, gateway: GatewaySpec) -> AsyncIterator[Stack]:
    """Raises `CannotListen`, or what the launcher raises when a process does not start; logs are kept only then."""
    check_port(gateway.host, gateway.port)
    with _log_folder() as folder:
        async with AsyncExitStack() as exits:
            agent = await _start_agent(spec, folder, exits)
            with progress(f"starting {spec.title}"):
                members = await exits.enter_async_context(running_engines(spec, folder, agent.socket if agent else None))
            with progress("starting the gateway"):
                stack = await _start_gateway(spec, gateway, members, agent, folder, exits)
            yield stack


async def _start_agent(spec: PoolSpec, folder: Path, exits: AsyncExitStack) -> NodeAgent | None:
    """The pool that emulated workers share; real ones run without."""
    if spec.engine is not EngineChoice.EMULATOR:
        return None
    agent = NodeAgent(folder, dram_bytes=DRAM_BYTES, ssd_bytes=SSD_BYTES, node=NODE, peers=True)
    exits.push_async_callback(agent.stop)
    with progress("starting the node agent"):
        await agent.start()
    return agent


async def _start_gateway(
    spec: PoolSpec,
    gateway: GatewaySpec,
    members: tuple[Member, ...],
    agent: NodeAgent | None,
    folder: Path,
    exits: AsyncExitStack,
) -> Stack:
    config_file = folder / "gateway.yaml"
    config_file.write_text(config_yaml(spec, gateway, members, agent.peer if agent else None), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "loadback", "serve", "--config", str(config_file)]
    process = await start_process("the gateway", gateway.url, command, {}, folder / "gateway.log")
    exits.push_async_callback(process.stop, gateway.drain_s + STOP_MARGIN_S)
    await process.ready("/readyz", GATEWAY_READY_S)
    return Stack(members, gateway, config_file, process)


@contextmanager
def _log_folder() -> Iterator[Path]:
    """Removed at the end, also after an interrupt; kept and named after an error."""
    folder = Path(tempfile.mkdtemp(prefix="loadback-"))
    try:
        yield folder
    except Exception:
        say(f"logs are kept in {folder}")
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def config_yaml(spec: PoolSpec, gateway: GatewaySpec, members: tuple[Member, ...], agent: Peer | None = None) -> str:
    """Only what differs from the defaults, so that the file reads like one written by hand."""
    tree = gateway_config(spec, gateway, members, agent).model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(tree, sort_keys=False)
