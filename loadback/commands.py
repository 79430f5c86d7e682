"""The `loadback` command, put together from one module a command. It holds no logic of its own."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from bench.deltatok.cli import deltatok
from bench.hip.cli import hip
from bench.overhead.cli import overhead
from bench.placement.cli import placement
from bench.prefetch.cli import prefetch
from bench.reach.cli import reach
from bench.simulate.cli import sim_commands
from bench.swarm.cli import swarm
from bench.tiers.cli import tiers
from bench.validate.cli import validate
from loadback.agent_command import agent
from loadback.demo_command import demo
from loadback.doctor.command import doctor
from loadback.explain_command import explain
from loadback.serve_command import serve
from loadback.sglang_plugin_command import sglang_plugin
from loadback.up_command import up
from loadback.vllm_plugin_command import vllm_plugin

HELP = """A cache-aware gateway for agentic LLM serving.

Agent CLIs point at its /v1; every turn goes where it will finish first.

[bold]Start here[/bold]

  loadback demo               sessions through an embedded pool, turn by turn

  loadback up                 an embedded pool for a client of your own

  loadback serve -c FILE      your own engines, from a configuration file

  loadback agent -c FILE      one node's share of the KV store, for the engines there

  loadback doctor -c FILE     what to fix in engines and configuration

  loadback explain BODY.json  where a request would go, and why
"""


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"loadback {metadata.version('loadback')}")
        raise typer.Exit


def build() -> typer.Typer:
    app = typer.Typer(
        name="loadback",
        help=HELP,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for command in (serve, agent, sglang_plugin, vllm_plugin, up, demo, explain, doctor):
        app.command()(command)
    app.add_typer(bench_commands(), name="bench")
    sim = sim_commands()
    sim.command()(validate)
    app.add_typer(sim, name="sim")
    return app


def options(
    version: Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Its version.")] = False,
) -> None:
    """What may stand before a command."""


def bench_commands() -> typer.Typer:
    """Experiments register here; each takes --json and then prints one JSON object as its last line."""
    bench = typer.Typer(help="Experiments: loads and measurements.", no_args_is_help=True, rich_markup_mode="rich")
    for experiment in (overhead, swarm, deltatok, reach, placement, prefetch, tiers, hip):
        bench.command()(experiment)
    return bench
