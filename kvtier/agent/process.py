"""The agent as a process: its loop, its signals, its log, its exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time

import uvloop

from kvtier.agent.agent import Agent
from kvtier.agent.config import AgentConfig
from kvtier.agent.file_limit import raise_file_limit
from kvtier.agent.host_room import too_few_files, too_little_disk, too_little_free, too_much_memory, wrong_places
from kvtier.agent.places import CannotStart
from kvtier.pool.backing import BackingError
from kvtier.settings.address import AddressTaken
from kvtier.transport.one_sided import TransportUnavailable

log = logging.getLogger(__name__)

_YOUNG_OBJECTS = 50_000  # between collections: a put of a thousand pages makes more than the usual 700, and no cycles


def run_agent(config: AgentConfig) -> int:
    """Until SIGTERM or SIGINT; 1 where it could not start."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    raise_file_limit()
    if faults := wrong_places(config) or too_much_memory(config) or too_little_free(config) or too_few_files(config):
        print(f"agent {config.node} cannot start: {faults[0]}", file=sys.stderr)
        return 1
    for line in too_little_disk(config):
        log.warning("%s", line.removeprefix("warning: "))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except (CannotStart, AddressTaken, BackingError, TransportUnavailable, OSError) as error:
        print(f"agent {config.node} cannot start: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: AgentConfig) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(config, epoch=time.time_ns())
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    serving = loop.create_task(agent.run(stop, ready))
    announcing = loop.create_task(_announce(agent, ready))
    try:
        await serving
    finally:
        announcing.cancel()


async def _announce(agent: Agent, ready: asyncio.Event) -> None:
    """One line on standard output for whoever started the process and waits for it."""
    await ready.wait()
    print(f"ready node={agent.config.node} socket={agent.config.socket} port={agent.port}", flush=True)
