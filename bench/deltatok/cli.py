"""`loadback bench deltatok`: what tokenising and hashing one more turn of a long conversation costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.deltatok.experiment import Outcome, WrongPrompt, run_experiment

_MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
_CONTEXTS = "10000,50000,100000,200000,400000,800000"
_DECIMALS = 3


def deltatok(
    model_dir: Annotated[Path, typer.Option(help="Folder with a tokenizer and a chat template.")] = _MODEL_DIR,
    contexts: Annotated[str, typer.Option(help="Lengths of the conversation in tokens, separated by commas.")] = _CONTEXTS,
    new_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens that a turn adds, about.")] = 700,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="Turns of each length; the median counts.")] = 21,
    fast: Annotated[bool, typer.Option("--fast", help="With fastokens, if it is installed and exact.")] = False,
    more: Annotated[
        bool, typer.Option("--more", help="Also other protocols, memory, and how long an event loop waits, at 100k tokens.")
    ] = False,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Measure the CPU time of a turn's delta, beside tokenising the whole prompt, on one core. Takes half a minute.

    [bold]Examples[/bold]

      loadback bench deltatok --json

      loadback bench deltatok --contexts 100000 --more

      loadback bench deltatok --model-dir /models/qwen3 --contexts 100000 --turns 101
    """
    try:
        outcome = run_experiment(model_dir, _lengths(contexts), new_tokens, turns, _tell, fast=fast, more=more)
    except (ValueError, WrongPrompt) as error:
        _tell(str(error))
        raise typer.Exit(1) from error
    console = Console()
    console.print(_table(outcome))
    for title, found in (("One more turn, by protocol", outcome.dialects), ("Memory", outcome.memory), ("Loop", outcome.loop)):
        if found:
            console.print(_plain_table(title, found))
    if as_json_line:
        print(json.dumps(as_json(outcome)), flush=True)


def as_json(outcome: Outcome) -> dict[str, object]:
    """`{"rows": [...], "chain_200k_ms": ..., "slope_ms_per_100k": ...}`, and what `--more` adds."""
    rows = [_rounded(row) for row in outcome.rows]
    further = {
        name: [_rounded(row) for row in found]
        for name, found in (("dialects", outcome.dialects), ("memory", outcome.memory), ("loop", outcome.loop))
        if found
    }
    return {
        "rows": rows,
        **further,
        "chain_200k_ms": round(outcome.chain_200k_ms, _DECIMALS),
        "slope_ms_per_100k": round(outcome.slope_ms_per_100k, _DECIMALS),
    }


def _table(outcome: Outcome) -> Table:
    table = Table("context tokens", "new tokens", "delta ms", "tokenizer alone ms", "all anew ms", title="CPU time, one core")
    for row in outcome.rows:
        times = (row.delta_cpu_ms, row.full_cpu_ms, row.cold_cpu_ms)
        table.add_row(f"{row.context_tokens:,}", f"{row.new_tokens:,}", *(f"{value:.2f}" for value in times))
    table.caption = (
        f"slope {outcome.slope_ms_per_100k:.3f} ms per 100,000 tokens; hashing 200,000 tokens {outcome.chain_200k_ms:.1f} ms"
    )
    return table


def _plain_table(title: str, rows: Sequence[msgspec.Struct]) -> Table:
    table = Table(*rows[0].__struct_fields__, title=title)
    for row in rows:
        table.add_row(*map(str, _rounded(row).values()))
    return table


def _rounded(row: msgspec.Struct) -> dict[str, object]:
    values = msgspec.structs.asdict(row)
    return {name: round(value, _DECIMALS) if isinstance(value, float) else value for name, value in values.items()}


def _lengths(words: str) -> list[int]:
    try:
        lengths = [int(word) for word in words.split(",") if word.strip()]
    except ValueError as error:
        raise typer.BadParameter(f"{words!r} is not a list of whole numbers", param_hint="--contexts") from error
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter("give at least one length above 0", param_hint="--contexts")
    return lengths


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
