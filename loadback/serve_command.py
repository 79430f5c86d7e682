"""`loadback serve`: read one configuration, then serve until told to stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine_adapters.launch.listening import CannotListen, check_port
from kvtier.prefetch.params import Mode
from kvtier.settings.address import AddressTaken, authority, check_address
from loadback.first_beliefs import first_beliefs
from loadback.terminal import say
from loadback.whose_file import faults_of
from router.config.load import ConfigError, load_config
from router.config.tree import Config


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML file; see docs/configuration.md.")],
    check: Annotated[bool, typer.Option("--check", help="Only say whether the file is good, and what it says.")] = False,
    host: Annotated[str | None, typer.Option(help="Listen here instead of listen.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Listen on this port instead of listen.port.")] = None,
) -> None:
    """Serve the pools of a configuration file.

    Ends with status 0 after SIGTERM or Ctrl-C, once the streams have finished (or after listen.drain_s).

    [bold]Examples[/bold]

      loadback serve --config configs/sglang-2p1d.yaml --check

      loadback serve --config configs/sglang-2p1d.yaml --port 8080
    """
    try:
        tree = with_address(load_config(config), host, port)
    except ConfigError as error:
        print(faults_of(config, "serve", error), file=sys.stderr)
        raise typer.Exit(1) from error
    if check:
        Console().print(summary(tree))
        for line in beliefs(tree):
            print(line)
        for line in beside_turns(tree):
            print(line)
        for line in [*missing_folders(tree), *lone_agents(tree)]:
            say(line)
        raise typer.Exit(0)
    try:
        check_addresses(tree)
    except (CannotListen, AddressTaken) as error:
        say(str(error))
        raise typer.Exit(1) from error
    from router.serve import run  # loads the whole server: other commands start faster without it

    raise typer.Exit(run(tree))


def check_addresses(tree: Config) -> None:
    """Of the gateway and of its UMBP master. Raises `CannotListen`, `AddressTaken`."""
    check_port(tree.listen.host, tree.listen.port)
    if tree.umbp is None:
        return
    address = (tree.umbp.host, tree.umbp.port)
    if tree.umbp.port and address == (tree.listen.host, tree.listen.port):
        raise AddressTaken("umbp.port", f"the gateway itself is to listen on {authority(*address)}: choose another")
    check_address("umbp", *address)


def missing_folders(tree: Config) -> list[str]:
    """No fault of the file: it may be checked elsewhere than where it serves, and turns are served without the folder, too."""
    return [
        f"warning: pool {pool.name}: prompt.model_dir: no such folder here: {pool.prompt.model_dir}; "
        "without it residency comes from lineage alone"
        for pool in tree.pools
        if pool.prompt is not None and not Path(pool.prompt.model_dir).is_dir()
    ]


def lone_agents(tree: Config) -> list[str]:
    """Nor is this one: workers may be added later."""
    homes = {worker.home for pool in tree.pools for _, worker in pool.workers()}
    return [
        f"warning: agents.{number}.node: no worker runs on {peer.node!r}, but on {', '.join(sorted(homes))}; "
        "give the workers that attach to this agent `node` as it has"
        for number, peer in enumerate(tree.agents)
        if peer.node not in homes
    ]


def with_address(tree: Config, host: str | None, port: int | None) -> Config:
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return tree.model_copy(update={"listen": tree.listen.model_copy(update=given)})


def beliefs(tree: Config) -> list[str]:
    """A line for each pool that names its machine."""
    told = {pool.name: first_beliefs(pool) for pool in tree.pools}
    return [f"hardware of {name}: {line}" for name, line in told.items() if line is not None]


def beside_turns(tree: Config) -> list[str]:
    """What runs beside the turns, a line each."""
    agents = ", ".join(f"{peer.node} at {peer.host}:{peer.port}" for peer in tree.agents)
    prefetch = f"prefetch: {tree.prefetch.mode.value}"
    if tree.prefetch.mode is not Mode.OFF:
        prefetch += f", triggers {', '.join(tree.prefetch.triggers) or 'none'}"
        prefetch += "" if tree.prefetch.warm else ", without warm requests"
    umbp = f"master of UMBP on {tree.umbp.host}:{tree.umbp.port}" if tree.umbp is not None else "no master"
    if tree.umbp_master is not None:
        umbp += f", asks the one at {tree.umbp_master.address}"
    return [f"agents: {agents or 'none'}", prefetch, f"umbp: {umbp}"]


def summary(tree: Config) -> Table:
    """What the file says, one worker a line."""
    title = f"good: listens on {tree.listen.host}:{tree.listen.port}, policy {tree.policy.name}"
    table = Table("pool", "engine", "role", "worker", "url", title=title, title_justify="left")
    for pool in tree.pools:
        for role, worker in pool.workers():
            table.add_row(escape(pool.name), pool.engine.value, role.value, escape(worker.worker_id), escape(worker.url))
    return table
