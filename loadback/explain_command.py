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
from rich.markup import escape
from rich.table import Table
from rich.text import Text

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
    due_class: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="The class that the client would name (x-loadback-class).")
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(min=1, help="When the first token would be due, instead of what the class says.")
    ] = None,
    token: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Ask a running gateway what every worker pair would cost for a body, term by term, and why one wins. Nothing is sent on.

    --class and --deadline-ms need policy.objective slo at the gateway, and a class that policy.classes declares.

    The body's model must be one that the gateway serves; that of configs/example-body.json is served by demo and up alone.

    [bold]Examples[/bold]

      loadback explain configs/example-body.json

      jq -c .request trace.json | loadback explain - --url http://10.0.0.5:8000 --token SECRET

      loadback explain configs/example-body.json --class interactive --deadline-ms 500   (under policy.objective slo)
    """
    try:
        query = {"path": path} | ({} if deadline_ms is None else {"deadline_ms": f"{deadline_ms:g}"})
        headers = admin_headers(token) | ({} if due_class is None else {"x-loadback-class": due_class})
        answer = asyncio.run(_ask(url, query, headers, body.read()))
    except AdminError as error:
        say(str(error))
        raise typer.Exit(1) from error
    if as_json:
        print(msgspec.json.encode(answer).decode())
    else:
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        print_explained(answer, console)


async def _ask(url: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Explained:
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        return await fetch(http, f"/admin/explain?{urlencode(query)}", Explained, body)


def print_explained(answer: Explained, console: Console) -> None:
    call = "first" if answer.first_call else "later"
    length = f"{answer.prompt_tokens} prompt tokens"
    if not answer.prompt_tokens_exact:
        length = f"about {length} (estimated)"
    thread = f"thread {answer.thread} ({answer.kind}), {call} call, {length}"
    lines = [
        Text.assemble((answer.worker, "bold"), f" by policy {answer.policy}: {answer.reason}"),
        Text(deadline_line(answer)),
    ]
    if answer.left_out:
        names = ", ".join(f"{worker} ({why})" for worker, why in answer.left_out.items())
        lines.append(Text(f"not weighed: {names}"))
    console.print(Text(f"model {answer.model} on pool {answer.pool}, {thread}"), soft_wrap=True)
    console.print(candidates_table(answer))
    for line in lines:
        console.print(line, soft_wrap=True)


def deadline_line(answer: Explained) -> str:
    if answer.deadline_ms is None:
        return "no deadline: policy.objective is not slo, so that classes do not count"
    ttft_ms = answer.chosen.terms.ttft_ms
    verdict = "in time" if ttft_ms <= answer.deadline_ms else "refused: it would be late" if answer.shed else "late"
    due = f"class {answer.due_class}: first token due within {answer.deadline_ms:g} ms"
    return f"{due}, predicted after {ttft_ms:.1f} ms, {verdict}"


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
    return [">" if chosen else "", escape(candidate.worker), str(candidate.cut_tokens), candidate.hit_tier or "-", *terms]
