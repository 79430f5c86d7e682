"""The experiment's outcome as one JSON object and as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench.overhead.experiment import Outcome
from bench.overhead.loads import LOADS, Figures, Part
from bench.overhead.peers import Peer

Entry = dict[str, float | str]
_OF_THE_WORKERS = ("cpu_ms", "cpu_s_per_m")  # what "direct" cannot tell: nothing is in between
_WIDTH = 100
_COLUMNS = {
    Part.SMALL: ("cpu_ms", "rps", "p50_ms", "p99_ms"),
    Part.AGENT: ("cpu_ms", "p50_ms", "added_p50_ms", "p99_ms", "sticky", "workers"),
    Part.SSE1000: ("cpu_s_per_m", "chunks_per_s", "p50_ms", "p99_ms"),
    Part.RSS: ("mb", "end_mb"),
}
_TITLES = {
    Part.SMALL: "small: 300 B chat, 64 connections closed loop; latency at 400/s",
    Part.AGENT: "agent: sessions of 20 to 800 KB (mean 410 KB), 40/s",
    Part.SSE1000: "sse1000: 1000 streams of 50 chunks/s; latency is a chunk's way through the router",
    Part.RSS: "rss: 2,000 sessions with 600 MB of unique text; peak and end",
}


def as_json(outcomes: Mapping[Peer, Outcome]) -> dict[str, dict[str, Entry]]:
    """`{part: {peer: figures}}`; a peer that was left out says why under `skipped`."""
    parts: dict[str, dict[str, Entry]] = {}
    for part in Part:
        entries = {peer.name: entry for peer, outcome in outcomes.items() if (entry := _entry(part, peer, outcome))}
        if entries:
            parts[part.value] = entries
    for peers in parts.values():
        _add_latency_over_direct(peers)
    return parts


def tables(outcomes: Mapping[Peer, Outcome]) -> list[Table]:
    """One a part, the peers as rows."""
    found = []
    for part, peers in as_json(outcomes).items():
        columns = _COLUMNS[Part(part)]
        table = Table("", *columns, "noise", "errors", title=_TITLES[Part(part)], title_justify="left", min_width=_WIDTH)
        for name, entry in peers.items():
            if "skipped" in entry:
                table.add_row(name, str(entry["skipped"]))
            else:
                table.add_row(name, *(_cell(entry, column) for column in (*columns, "noise", "errors")))
        found.append(table)
    return found


def _entry(part: Part, peer: Peer, outcome: Outcome) -> Entry:
    if outcome.skipped is not None:
        return {"skipped": outcome.skipped}
    runs = [(load, outcome.best[load]) for load in LOADS if load.part is part and load in outcome.best]
    figures: Figures = {}
    for load, run in runs:
        figures |= load.figures(run)
    if not figures:
        return {}
    if not peer.routes:
        figures = {name: value for name, value in figures.items() if name not in _OF_THE_WORKERS}
    figures |= {"noise": max(run.noise for _, run in runs), "errors": sum(run.errors for _, run in runs)}
    return {name: round(value, 4) for name, value in figures.items()}


def _add_latency_over_direct(peers: dict[str, Entry]) -> None:
    direct = peers.get("direct", {}).get("p50_ms")
    for name, entry in peers.items():
        own = entry.get("p50_ms")
        if name != "direct" and isinstance(direct, float) and isinstance(own, float):
            entry["added_p50_ms"] = round(own - direct, 4)


def _cell(entry: Entry, column: str) -> str:
    value = entry.get(column)
    if not isinstance(value, float | int):
        return "-"
    digits = 0 if value == int(value) or value >= 1000 else 1 if value >= 10 else 3
    return f"{value:,.{digits}f}"
