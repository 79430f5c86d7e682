"""`loadback agent`: one node's share of the tiered KV store, until told to stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtier.agent.config import AgentConfig, ConfigError, load_config
from kvtier.agent.host_room import shut_places, too_few_files, too_little_disk, too_much_memory, wrong_places
from loadback.terminal import say
from loadback.whose_file import faults_of


def agent(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML file; see docs/tiers.md.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the file is good for this host, and what it says.")
    ] = False,
) -> None:
    """Keep this host's share of the KV store: L3 in shared memory, L4 on SSD.

    Engines on this host attach at its Unix socket, other agents over TCP. Prints one line once it serves; ends with status 0
    after SIGTERM or Ctrl-C, when what was on its way to SSD is there.

    [bold]Examples[/bold]

      loadback agent --config configs/agent/node.yaml --check

      loadback agent --config configs/agent/node.yaml
    """
    try:
        settings = load_config(config)
    except ConfigError as error:
        print(faults_of(config, "agent", error), file=sys.stderr)
        raise typer.Exit(1) from error
    if check:
        from kvtier.transport.transport import missing_extra

        if extra := missing_extra(settings.transport):
            print(f"{config}: transport.engine {extra} needs the extra: pip install 'loadback[{extra}]'", file=sys.stderr)
            raise typer.Exit(1)
        if faults := wrong_places(settings) or too_much_memory(settings) or too_few_files(settings):
            print("\n".join(f"{config}: {fault}" for fault in faults), file=sys.stderr)
            raise typer.Exit(1)
        print(summary(settings))
        for line in [*shut_places(settings), *too_little_disk(settings)]:
            say(line)
        raise typer.Exit(0)
    from kvtier.agent.process import run_agent  # loads the whole agent: other commands start faster without it

    raise typer.Exit(run_agent(settings))


def summary(settings: AgentConfig) -> str:
    """One line."""
    ssd = f"{settings.ssd.bytes >> 20} MiB of SSD in {settings.ssd.directory}" if settings.ssd else "no SSD"
    peers = f"peers at {settings.listen.host}:{settings.listen.port}" if settings.listen else "no peers"
    dram = f"{settings.dram.bytes >> 20} MiB of DRAM ({settings.dram.backing.value})"
    return f"good: node {settings.node}, {dram}, {ssd}, engines at {settings.socket}, {peers}"
