"""`loadback explain`: where would this body go, and why. Nothing is sent to an engine."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import urlencode

import httpx
import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadback.admin_api import AdminError, Candidate, Explained, admin_headers, fetch
from loadback.gateway_url import DEFAULT_URL, TokenOption, UrlOption
from loadback.terminal import say

COLUMNS = (
    "admit_ms",
    "queue_ms",
    "fetch_ms",
    "exposed_ms",
    "compute_ms",
    "transfer_ms",
    "decode_ms",
    "pressure_ms",
    "ttft_ms",
    "total_ms",
)
TABLE_WIDTH = 136


def explain(
    body: Annotated[typer.FileBinaryRead, typer.Argument(metavar="BODY.json", help="A request body; - reads standard input.")],
    url: UrlOption = DEFAULT_URL,
    path: Annotated[str, typer.Option(help="The API path that the body is for.")] = "/v1/chat/completions",
    token: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Ask a running gateway what every worker pair would cost for a body, term by term, and why one wins. Nothing is sent on.

    [bold]Examples[/bold]

      loadback explain configs/example-body.json

      jq -c .request trace.json | loadback explain - --url http://10.0.0.5:8000 --token SECRET
    """
    try:
        answer = asyncio.run(_ask(url, path, token, body.read()))
    except AdminError as error:
        say(str(error))
        raise typer.Exit(1) from error
    if as_json:
        print(msgspec.json.encode(answer).decode())
    else:
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        print_explained(answer, console)


async def _ask(url: str, path: str, token: str | None, body: bytes) -> Explained:
    async with httpx.AsyncClient(base_url=url, headers=admin_headers(token), trust_env=False) as http:
        return await fetch(http, f"/admin/explain?{urlencode({'path': path})}", Explained, body)


def print_explained(answer: Explained, console: Console) -> None:
    call = "first" if answer.first_call else "later"
    thread = f"thread {answer.thread} ({answer.kind}), {call} call, {answer.prompt_tokens} prompt tokens"
    console.print(f"model {answer.model} on pool {answer.pool}, {thread}", highlight=False, soft_wrap=True)
    console.print(candidates_table(answer))
    console.print(f"[bold]{answer.worker}[/bold] by policy {answer.policy}: {answer.reason}", highlight=False, soft_wrap=True)


def candidates_table(answer: Explained) -> Table:
    """Cheapest first; the winner is marked, since a policy need not choose the cheapest."""
    table = Table("", "worker", title="Cost of each pair, in ms", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("cached tokens", justify="right")
    table.add_column("tier")
    for name in COLUMNS:
        table.add_column(name.removesuffix("_ms"), justify="right")
    candidates = sorted([answer.chosen, *answer.others], key=lambda candidate: candidate.terms.total_ms)
    for candidate in candidates:
        chosen = candidate is answer.chosen
        table.add_row(*_cells(candidate, chosen), style="bold" if chosen else None)
    return table


def _cells(candidate: Candidate, chosen: bool) -> list[str]:
    terms = [f"{getattr(candidate.terms, name):.2f}" for name in COLUMNS]
    return [">" if chosen else "", candidate.worker, str(candidate.cut_tokens), candidate.hit_tier or "-", *terms]
