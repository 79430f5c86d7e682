"""Tokens by tier, what agents moved and what prefetch did: summed, and every figure in the tables."""

from __future__ import annotations

from rich.console import Console

from kvtier.prefetch.events import Trigger
from loadback.admin_api import Actual, NodeNumbers, PastTurn, Prefetched, PrefetchTally, Tiers
from loadback.demo_command import TIERS_LEGEND
from loadback.tier_tables import Moved, moved_bytes, prefetch_table, prefetched, tiers_table, tokens_by_tier

TIERS = Tiers(
    [NodeNumbers("n0", numbers={"stored": 5.0, "dram_hits": 3.0, "demoted": 2.0}), NodeNumbers("n1", numbers={"stored": 1.0})],
    Prefetched(
        {
            "drain": PrefetchTally(planned_bytes=3_000_000, useful_bytes=2_000_000, saved_ms=7.5, jobs={"consumed": 2}),
            "resume": PrefetchTally(
                wasted_bytes=1_000_000, warm_wasted_bytes=400_000, added_ms=1.0, jobs={"consumed": 1, "expired": 1}
            ),
            "turn_end": PrefetchTally(),
        }
    ),
)


def past(prompt: int, **tiers: int) -> PastTurn:
    return PastTurn("r", actual=Actual(prompt_tokens=prompt, cached_by_tier=tiers or None))


def rows(table: object) -> list[list[str]]:
    console = Console(width=200, record=True, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.split() for line in capture.get().splitlines() if line.strip()]


def test_what_no_tier_served_was_computed() -> None:
    told = tokens_by_tier([past(100, L1=60, L3=16), past(50), PastTurn("refused")])
    assert told == {"L1": 60, "L2": 0, "L3": 16, "computed": 74}


def test_bytes_are_those_of_all_agents() -> None:
    assert moved_bytes(TIERS, 1000) == Moved(engine_to_l3=6000, l3_to_engine=3000, l3_to_ssd=2000, ssd_to_l3=0)


def test_triggers_add_up() -> None:
    assert prefetched(TIERS) == PrefetchTally(
        planned_bytes=3_000_000,
        useful_bytes=2_000_000,
        wasted_bytes=1_000_000,
        warm_wasted_bytes=400_000,
        saved_ms=7.5,
        added_ms=1.0,
        jobs={"consumed": 3, "expired": 1},
    )


def test_rows_hold_the_figures() -> None:
    drawn = rows(tiers_table({"L1": 60, "L2": 0, "L3": 16, "computed": 74}, Moved(2_500_000, 1_000_000, 0, 0)))
    assert ["L3", "(storage)", "16", "10.7", "%", "L3", "to", "SSD", "(L4)", "0.0"] in drawn
    assert ["L1", "(device)", "60", "40.0", "%", "engines", "to", "L3", "2.5"] in drawn
    drawn = rows(prefetch_table(TIERS))
    assert ["drain", "consumed", "x2", "3.0", "2.0", "0.0", "0.0", "0.0", "0.0", "7.5"] in drawn
    assert ["all", "consumed", "x3,", "expired", "x1", "3.0", "2.0", "1.0", "0.0", "0.0", "0.4", "7.5"] in drawn
    assert not [row for row in drawn if row[0] == "turn_end"], "a trigger that did nothing has no row"


def test_the_legend_explains_every_trigger() -> None:
    assert [trigger for trigger in Trigger if f"{trigger}, a" not in " ".join(TIERS_LEGEND.split())] == []
