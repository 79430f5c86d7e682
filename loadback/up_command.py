"""`loadback up`: an embedded pool and the gateway, until told to stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from costmodel.policies import REGISTRY
from engine_adapters.launch.environments import EngineNotInstalled
from engine_adapters.launch.listening import CannotListen
from engine_adapters.launch.ports import NoFreePort
from engine_adapters.launch.process import EngineStartError
from loadback.guide import client_guide, own_command, watch_guide
from loadback.pool_spec import MODEL_NAME, TINY_MODEL, EngineChoice, GatewaySpec, PoolSpec
from loadback.stack import Stack, running_stack
from loadback.terminal import run_reporting

START_ERRORS = (EngineNotInstalled, EngineStartError, NoFreePort, CannotListen)


def known_policy(name: str) -> str:
    if name not in REGISTRY:
        raise typer.BadParameter(f"{name} is none of {', '.join(sorted(REGISTRY))}")
    return name


def known_engine(name: str) -> EngineChoice:
    if name not in set(EngineChoice):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(EngineChoice)}")
    return EngineChoice(name)


EngineOption = Annotated[
    EngineChoice,
    typer.Option(
        help="Emulated workers, or real SGLang on this machine's CPU.",
        parser=known_engine,
        metavar=f"[{'|'.join(EngineChoice)}]",
    ),
]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="Where the gateway listens.")]
HostOption = Annotated[str, typer.Option(help="Address the gateway listens on.")]
PrefillsOption = Annotated[int, typer.Option(min=1, max=16, help="Prefill workers (unified ones if --decodes 0).")]
DecodesOption = Annotated[int, typer.Option(min=0, max=16, help="Decode workers.")]
ModelOption = Annotated[Path, typer.Option(help="Folder with the model, its tokenizer and chat template.", exists=True)]
PolicyOption = Annotated[str, typer.Option(help=f"One of {', '.join(sorted(REGISTRY))}.", callback=known_policy)]


def up(
    engine: EngineOption = EngineChoice.EMULATOR,
    port: PortOption = 8000,
    host: HostOption = "127.0.0.1",
    prefills: PrefillsOption = 2,
    decodes: DecodesOption = 1,
    model_dir: ModelOption = TINY_MODEL,
    policy: PolicyOption = "cost",
) -> None:
    """Start an embedded pool and the gateway in front of it; Ctrl-C stops both.

    [bold]Examples[/bold]

      loadback up

      loadback up --port 8080 --prefills 4 --decodes 2

      loadback up --engine sglang
    """
    spec = PoolSpec(engine, prefills, decodes, model_dir)
    gateway = GatewaySpec(host, port, policy)
    raise typer.Exit(run_reporting(_serve(spec, gateway), START_ERRORS, interrupted_status=0))


async def _serve(spec: PoolSpec, gateway: GatewaySpec) -> int:
    async with running_stack(spec, gateway) as stack:
        print(welcome(spec, stack), flush=True)
        return 0 if await stack.serve_until_told() else 1


def welcome(spec: PoolSpec, stack: Stack) -> str:
    workers = "\n".join(f"{member.name:<12} {member.url}  pid {member.pid}" for member in stack.members)
    url = stack.gateway.url
    return "\n".join(
        [
            f"\n{spec.title} behind {url}/v1, model {MODEL_NAME} (config: {stack.config_file})\n",
            workers,
            "\nPoint a client at it:\n",
            client_guide(url, MODEL_NAME, spec.context_tokens),
            "\nWatch it:\n",
            watch_guide(url, MODEL_NAME, own_command(Path(sys.argv[0]), Path.cwd())),
            "\nCtrl-C stops everything.",
        ]
    )
