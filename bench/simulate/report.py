"""One experiment as a folder: a Parquet file a run, pictures, the figures as JSON, and a page that holds all of it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.simulate.columns import read_turns
from bench.simulate.plots import cdf_plot, split_plot, tiers_plot

_STYLE = (
    "body{font:15px sans-serif;max-width:72em;margin:2em auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right}"
)
_ROWS = (
    ("turns", ("turns",), "{:,}"),
    ("TTFT p50, s", ("ttft_s", "p50"), "{:.2f}"),
    ("TTFT p90, s", ("ttft_s", "p90"), "{:.2f}"),
    ("TTFT p99, s", ("ttft_s", "p99"), "{:.2f}"),
    ("E2E p90, s", ("e2e_s", "p90"), "{:.1f}"),
    ("tokens/s", ("tokens_per_s",), "{:,.0f}"),
    ("hit", ("hit",), "{:.1%}"),
    ("first-call hit", ("first_call_hit",), "{:.1%}"),
    ("later-call hit", ("later_call_hit",), "{:.1%}"),
    ("$ per M tokens", ("usd_per_million_tokens",), "{:.3f}"),
    ("L1, tokens", ("tokens_by_tier", "L1"), "{:,}"),
    ("L2, tokens", ("tokens_by_tier", "L2"), "{:,}"),
    ("L3, tokens", ("tokens_by_tier", "L3"), "{:,}"),
    ("L4, tokens", ("tokens_by_tier", "L4"), "{:,}"),
    ("computed, tokens", ("tokens_by_tier", "computed"), "{:,}"),
    ("mean regret, s", ("regret_s", "e2e", "mean"), "{:.2f}"),
)


def turns_path(folder: Path, label: str) -> Path:
    return folder / f"turns-{label.replace(' ', '-')}.parquet"


def write_report(folder: Path, title: str, line: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> Path:
    """`line` is what `--json` prints. Returns the page's path."""
    runs = {label: read_turns(turns_path(folder, label)) for label in results}
    pictures = {"ttft-cdf": cdf_plot(runs, "ttft"), "e2e-cdf": cdf_plot(runs, "e2e"), "first-and-later": split_plot(results)}
    pictures |= {f"tiers-{label.replace(' ', '-')}": tiers_plot(columns, label) for label, columns in runs.items()}
    for name, png in pictures.items():
        (folder / f"{name}.png").write_bytes(png)
    (folder / "result.json").write_text(json.dumps(line, indent=1), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_page(title, results, pictures), encoding="utf-8")
    return page


def _page(title: str, results: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, bytes]) -> str:
    images = "\n".join(_image(html.escape(name), base64.b64encode(png).decode()) for name, png in pictures.items())
    return (
        f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{html.escape(title)}</h1>{_table(results)}{images}\n"
    )


def _image(name: str, data: str) -> str:
    return f'<h2>{name}</h2><img alt="{name}" src="data:image/png;base64,{data}">'


def _table(results: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}" for name, _, _ in _ROWS)
    body = "".join(
        f"<tr><td>{html.escape(label)}" + "".join(f"<td>{_cell(found, keys, form)}" for _, keys, form in _ROWS)
        for label, found in results.items()
    )
    return f"<table><tr><th>{head}{body}</table>"


def _cell(found: Mapping[str, Any], keys: tuple[str, ...], form: str) -> str:
    value: Any = found
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "-" if value is None else form.format(value)
