"""Blocks to tokens."""

from __future__ import annotations

from costmodel.values import Run, Tier
from kvtier.index.convert import lineage_runs, to_residency
from kvtier.index.runs import BlockRun, Match


def test_blocks_become_tokens() -> None:
    match = Match((BlockRun(0, 4, Tier.L1), BlockRun(4, 2, Tier.L2)), 30.0)
    residency = to_residency(match, 64, 1000)
    assert residency.runs == (Run(0, 256, Tier.L1), Run(256, 128, Tier.L2))
    assert (residency.tokens, residency.age_ms) == (384, 30.0)


def test_runs_end_with_the_prompt() -> None:
    match = Match((BlockRun(0, 4, Tier.L1), BlockRun(4, 2, Tier.L2)), 0.0)
    assert to_residency(match, 64, 200).runs == (Run(0, 200, Tier.L1),)
    assert to_residency(match, 64, 0).runs == ()


def test_lineage_counts_the_messages_tokens() -> None:
    assert lineage_runs(2, [100, 250, 260, 900], 1) == (Run(0, 250, Tier.L1),)


def test_lineage_is_rounded_down_to_pages() -> None:
    assert lineage_runs(3, [100, 250, 255, 900], 64) == (Run(0, 192, Tier.L1),)
    assert lineage_runs(1, [60, 250], 64) == ()


def test_an_unknown_page_size_rounds_nothing() -> None:
    assert lineage_runs(1, [60, 250], 0) == (Run(0, 60, Tier.L1),)


def test_a_head_of_no_tokens_is_no_run() -> None:
    assert lineage_runs(1, [0, 50], 1) == ()
