"""An experiment's figures as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_GB = 1e9


def result_table(title: str, results: Mapping[str, Mapping[str, Any]], rows: str = "policy") -> Table:
    """One row a policy, or of what `rows` names; times in seconds, hits in percent of tokens, the lowest p90 E2E and p99 TTFT
    in bold; regret: mean and median of what a turn's E2E lost against the best choice in hindsight."""
    table = Table(title=title, title_justify="left")
    table.add_column(rows, no_wrap=True)
    for column in (
        "turns",
        "TTFT p50",
        "p90",
        "p99",
        "first",
        "later",
        "E2E p90",
        "tok/s",
        "hit",
        "first hit",
        "later hit",
        "L1/L2/L3/L4 Mtok",
        "moved GB",
        "$/Mtok",
        "regret",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    counted = [found for found in results.values() if found["turns"]]
    best_e2e = min((found["e2e_s"]["p90"] for found in counted), default=0.0)
    best_ttft = min((found["ttft_s"]["p99"] for found in counted), default=0.0)
    for name, found in results.items():
        table.add_row(name, *(_cells(found, best_e2e, best_ttft) if found["turns"] else ["0"]))
    return table


def _cells(found: Mapping[str, Any], best_e2e: float, best_ttft: float) -> list[str]:
    ttft, tiers = found["ttft_s"], found["tokens_by_tier"]
    moved = sum(found["moved_bytes"].values()) / _GB
    return [
        f"{found['turns']:,}",
        f"{ttft['p50']:.2f}",
        f"{ttft['p90']:.2f}",
        _bold(f"{ttft['p99']:.2f}", ttft["p99"] == best_ttft),
        _decimals(found["first_call_ttft_s"], 2),
        _decimals(found["later_call_ttft_s"], 2),
        _bold(f"{found['e2e_s']['p90']:.1f}", found["e2e_s"]["p90"] == best_e2e),
        f"{found['tokens_per_s']:,.0f}",
        _percent(found["hit"]),
        _percent(found["first_call_hit"]),
        _percent(found["later_call_hit"]),
        "/".join(f"{tiers[tier] / 1e6:,.0f}" for tier in ("L1", "L2", "L3", "L4")),
        f"{moved:,.0f}",
        _decimals(found["usd_per_million_tokens"], 3),
        "-" if not found["regret_s"] else "/".join(f"{found['regret_s']['e2e'][key]:.2f}" for key in ("mean", "p50")),
    ]


def _bold(text: str, best: bool) -> str:
    return f"[bold]{text}[/bold]" if best else text


def _decimals(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
