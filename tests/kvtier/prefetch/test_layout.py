"""Where copies come from, and what it saves: by the cost model's own arithmetic."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from prefetch_world import PAGE, RATES, RESTORE, TOKEN_BYTES, World

from costmodel.terms import compute_ms
from costmodel.values import Tier, WorkerKey
from kvtier.prefetch.benefit import Odds, harm_ms, link_cost_ms, weigh_stage, weigh_warm
from kvtier.prefetch.layout import Copy, Layout, lay_out
from kvtier.prefetch.view import Extent, Path, Place, Target


def target(*extents: Extent, prompt: int = 2_000, warmable: bool = False, reads_remote: bool = False) -> Target:
    return Target(
        WorkerKey("w1"),
        "n1",
        prompt,
        prompt,
        extents,
        RATES,
        RESTORE,
        TOKEN_BYTES,
        PAGE,
        warmable=warmable,
        reads_remote=reads_remote,
    )


def planned(world: World, *extents: Extent, **flags: bool) -> Layout:
    return lay_out(target(*extents, **flags), world)


def test_what_is_near_stays_and_what_is_far_is_copied() -> None:
    layout = planned(
        World(),
        Extent(0, 160, engine=Tier.L1),
        Extent(160, 160, (Place("n1", Tier.L3), Place("n2", Tier.L3))),
        Extent(320, 160, (Place("n1", Tier.L4),)),
        Extent(480, 160, (Place("n2", Tier.L3),)),
    )
    assert layout.copies == (Copy(320, 160, Path("n1", "n1")), Copy(480, 160, Path("n2", "n1")))
    assert layout.ready_tokens == 640
    assert layout.stage_bytes == 320_000


def test_the_walk_ends_where_no_copy_is() -> None:
    world = World(lost={"n3"})
    layout = planned(
        world, Extent(0, 160, (Place("n2", Tier.L3),)), Extent(160, 160, (Place("n3", Tier.L3),)), Extent(320, 160)
    )
    assert [copy.start for copy in layout.copies] == [0]
    assert layout.ready_tokens == 160


def test_the_copy_that_arrives_first_is_taken() -> None:
    world = World(demand={Path("n2", "n1"): 9_000.0})
    layout = planned(world, Extent(0, 160, (Place("n2", Tier.L3), Place("n3", Tier.L3))))
    assert layout.copies == (Copy(0, 160, Path("n3", "n1"), (Path("n2", "n1"),)),)


def test_remote_pages_count_as_missing_for_an_engine_that_reads_its_own_node_only() -> None:
    remote = Extent(0, 1_600, (Place("n2", Tier.L3),))
    alone, together = planned(World(), remote), planned(World(), remote, reads_remote=True)
    assert alone.now_ms == pytest.approx(compute_ms(RATES, 2_000, 0))
    assert alone.staged_ms < together.now_ms < alone.now_ms
    assert alone.staged_ms == together.staged_ms
    assert alone.saved_by_stage_ms == pytest.approx(800, rel=0.1)  # 1,600 tokens of 0.5 ms


def test_nothing_to_move_saves_nothing() -> None:
    layout = planned(World(), Extent(0, 1_600, engine=Tier.L1), warmable=True)
    assert layout.copies == ()
    assert (layout.warm_tokens, layout.saved_by_stage_ms, layout.saved_by_warm_ms) == (0, 0, 0)


def test_a_warm_request_saves_the_engine_s_own_legs() -> None:
    slow = {tier: msgspec.structs.replace(link, bytes_per_ms=1_000.0) for tier, link in RESTORE.items()}
    local = msgspec.structs.replace(target(Extent(0, 1_600, (Place("n1", Tier.L3),)), warmable=True), restore=slow)
    layout = lay_out(local, World())
    assert layout.copies == ()
    assert layout.warm_tokens == 1_600
    assert layout.warm_bytes == 1_600_000
    assert layout.saved_by_warm_ms > 1_000


def test_benefit_grows_with_probability_and_turns_behind() -> None:
    world = World()
    layout = planned(world, Extent(0, 1_600, (Place("n2", Tier.L3),)))
    saved = layout.saved_by_stage_ms
    assert weigh_stage(layout, Odds(0.5, 0.0), world).benefit_ms == pytest.approx(saved / 2)
    assert weigh_stage(layout, Odds(0.5, 0.5), world).benefit_ms == pytest.approx(saved * 0.75)
    busy = replace_target(layout, waiting_turns=3)
    assert weigh_stage(busy, Odds(0.5, 0.0), world).benefit_ms == pytest.approx(saved * 2)
    assert weigh_stage(layout, Odds(0.5, 0.0, here=0.5), world).benefit_ms == pytest.approx(saved / 4)


def test_what_will_be_wasted_costs_the_link_time_it_took() -> None:
    layout = planned(World(), Extent(0, 1_600, (Place("n2", Tier.L3),)))
    assert weigh_stage(layout, Odds(1.0, 0.0), World()).cost_ms == pytest.approx(0.0)
    assert weigh_stage(layout, Odds(0.5, 0.3), World()).cost_ms == pytest.approx(0.2 * layout.stage_ms)
    assert weigh_stage(layout, Odds(0.5, 0.3, here=0.5), World()).cost_ms == pytest.approx(0.6 * layout.stage_ms)


def test_a_warm_request_costs_its_copy_to_those_who_wait_and_come() -> None:
    slow = {tier: msgspec.structs.replace(link, bytes_per_ms=10_000.0) for tier, link in RESTORE.items()}
    local = msgspec.structs.replace(target(Extent(0, 1_600, (Place("n1", Tier.L3),)), warmable=True), restore=slow)
    layout = lay_out(local, World())
    step_ms = 1_600_000 / 10_000 + RESTORE[Tier.L2].latency_ms
    alone, crowded = weigh_warm(layout, 0.9, 0.0), weigh_warm(layout, 0.9, 0.01)
    assert crowded.cost_ms - alone.cost_ms == pytest.approx(0.01 * step_ms**2 / 2)
    behind = weigh_warm(replace_target(layout, waiting_turns=2), 0.9, 0.0)
    assert behind.cost_ms - alone.cost_ms == pytest.approx(2 * step_ms)
    assert alone.benefit_ms == pytest.approx(0.9 * layout.saved_by_warm_ms)


def test_costs_are_link_time_that_demand_needs_and_what_is_evicted() -> None:
    layout = planned(World(), Extent(0, 1_600, (Place("n2", Tier.L3),)))
    assert link_cost_ms(layout, World()) == 0
    half_used = World(demand={Path("n2", "n1"): 5_000.0})
    assert link_cost_ms(layout, half_used) == pytest.approx(0.5 * 1_600_000 / 10_000)
    assert harm_ms(layout, World(harm=0.001)) == 0
    assert harm_ms(layout, replace(World(), free_bytes=600_000, harm=0.001)) == pytest.approx(1_000)


def replace_target(layout: Layout, waiting_turns: int) -> Layout:
    return msgspec.structs.replace(layout, target=msgspec.structs.replace(layout.target, waiting_turns=waiting_turns))
