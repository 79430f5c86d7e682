"""What a demo's tiers did: where prompts came from, what the node agent moved, and what prefetch was good for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadback.admin_api import PastTurn, PrefetchTally, Tiers

COMPUTED = "computed"
TIER_NAMES = {"L1": "device", "L2": "host", "L3": "storage"}


class Moved(msgspec.Struct, frozen=True):
    """Bytes of pages by their way, of all agents since their start."""

    engine_to_l3: int = 0
    l3_to_engine: int = 0
    l3_to_ssd: int = 0
    ssd_to_l3: int = 0


_COUNTERS = {"engine_to_l3": "stored", "l3_to_engine": "dram_hits", "l3_to_ssd": "demoted", "ssd_to_l3": "promoted"}


def tokens_by_tier(past: Iterable[PastTurn]) -> dict[str, int]:
    """Prompt tokens by what served them; what no tier did was computed."""
    total = dict.fromkeys((*TIER_NAMES, COMPUTED), 0)
    for turn in past:
        served = turn.actual.cached_by_tier or {}
        for tier in TIER_NAMES:
            total[tier] += served.get(tier, 0)
        total[COMPUTED] += (turn.actual.prompt_tokens or 0) - sum(served.values())
    return total


def moved_bytes(tiers: Tiers, page_bytes: int) -> Moved:
    """Agents count pages."""
    pages = {way: sum(node.numbers.get(name, 0.0) for node in tiers.nodes) for way, name in _COUNTERS.items()}
    return Moved(**{way: int(count) * page_bytes for way, count in pages.items()})


def prefetched(tiers: Tiers) -> PrefetchTally:
    """Of all triggers together."""
    tallies = tiers.prefetch.triggers.values()
    jobs: Counter[str] = Counter()
    for tally in tallies:
        jobs.update(tally.jobs)
    names = [name for name in PrefetchTally.__struct_fields__ if name != "jobs"]
    return PrefetchTally(**{name: round(sum(getattr(tally, name) for tally in tallies), 1) for name in names}, jobs=dict(jobs))


def tiers_table(tokens: dict[str, int], moved: Moved) -> Table:
    table = Table("prompt tokens from", title="Tiers", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("tokens", "share"):
        table.add_column(heading, justify="right")
    table.add_column("bytes moved by the node agent")
    table.add_column("MB", justify="right")
    ways = [*msgspec.structs.asdict(moved).items()]
    whole = sum(tokens.values())
    for (tier, count), (way, size) in zip(tokens.items(), ways, strict=True):
        name = f"{tier} ({TIER_NAMES[tier]})" if tier in TIER_NAMES else tier
        share = f"{100 * count / whole:.1f} %" if whole else "-"
        table.add_row(name, str(count), share, _WAYS[way], megabytes(size))
    return table


def prefetch_table(tiers: Tiers) -> Table:
    """One row a trigger that did something, and one for all."""
    table = Table("prefetch by trigger", "jobs", title="Prefetch", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("planned MB", "useful MB", "wasted MB", "late MB", "warmed MB", "wasted", "ms saved"):
        table.add_column(heading, justify="right")
    for trigger, tally in tiers.prefetch.triggers.items():
        if tally != PrefetchTally():
            table.add_row(trigger, *_prefetch_cells(tally))
    table.add_section()
    table.add_row("all", *_prefetch_cells(prefetched(tiers)))
    return table


def _prefetch_cells(tally: PrefetchTally) -> list[str]:
    sizes = (
        tally.planned_bytes,
        tally.useful_bytes,
        tally.wasted_bytes,
        tally.late_bytes,
        tally.warmed_bytes,
        tally.warm_wasted_bytes,
    )
    jobs = ", ".join(f"{state} x{count}" for state, count in sorted(tally.jobs.items())) or "-"
    return [jobs, *map(megabytes, sizes), f"{tally.saved_ms:.1f}"]


_WAYS = {
    "engine_to_l3": "engines to L3",
    "l3_to_engine": "L3 to engines",
    "l3_to_ssd": "L3 to SSD (L4)",
    "ssd_to_l3": "SSD (L4) to L3",
}


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"
