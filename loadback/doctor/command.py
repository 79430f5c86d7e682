"""`loadback doctor`: prints one line a check, with the fix where there is something to fix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from loadback.doctor.check import Check, Mark
from loadback.doctor.examination import examine_config, examine_gateway
from loadback.gateway_url import TokenOption, checked_url
from loadback.terminal import say
from loadback.whose_file import faults_of
from router.config.load import ConfigError, load_config

COLOURS = {Mark.OK: "green", Mark.WARN: "yellow", Mark.FAIL: "bold red"}


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Check what this file lists.")] = None,
    url: Annotated[str | None, typer.Option(help="Check a running gateway and its workers.", callback=checked_url)] = None,
    token: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Check engines, events, tokenizer, clocks and limits, and say what to fix. Status 1 if a check fails.

    [bold]Examples[/bold]

      loadback doctor --config configs/sglang-2p1d.yaml

      loadback doctor --url http://127.0.0.1:8000
    """
    if (config is None) == (url is None):
        raise typer.BadParameter("give either --config FILE or --url URL")
    checks = _examine(config, url, token)
    failed = any(check.mark is Mark.FAIL for check in checks)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        _print(checks, Console())
    raise typer.Exit(1 if failed else 0)


def _examine(config: Path | None, url: str | None, token: str | None) -> list[Check]:
    if url is not None:
        return asyncio.run(examine_gateway(url, token))
    assert config is not None
    try:
        return asyncio.run(examine_config(load_config(config)))
    except ConfigError as error:
        say(faults_of(config, "serve", error))
        raise typer.Exit(1) from error


def _print(checks: Sequence[Check], console: Console) -> None:
    width = max((len(check.subject) for check in checks), default=0)
    for check in checks:
        mark = f"[{COLOURS[check.mark]}]{check.mark.value:<4}[/]"
        text = f"{mark} {escape(check.subject):<{width}}  {escape(check.name)}: {escape(check.found)}"
        console.print(text, highlight=False, soft_wrap=True)
        if check.fix:
            console.print(f"     {'':<{width}}  [bold]fix:[/bold] {escape(check.fix)}", highlight=False, soft_wrap=True)
    counts = ", ".join(f"{sum(check.mark is mark for check in checks)} {mark.value}" for mark in Mark)
    console.print(counts, highlight=False)
