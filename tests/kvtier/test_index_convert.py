"""Blocks to tokens."""

from __future__ import annotations

from costmodel.values import Run, Tier
from kvtier.index.convert import lineage_residency, to_residency
from kvtier.index.match import BlockRun, Match


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
    match = Match((BlockRun(0, 2, Tier.L1), BlockRun(2, 1, Tier.L2)), 30.0)
    residency = lineage_residency(match, [100, 250, 260, 900], 900, age_ms=5.0)
    assert residency.runs == (Run(0, 250, Tier.L1), Run(250, 10, Tier.L2))
    assert residency.age_ms == 5.0


def test_lineage_is_rounded_down_to_pages_and_stays_contiguous() -> None:
    match = Match((BlockRun(0, 2, Tier.L1), BlockRun(2, 1, Tier.L2), BlockRun(3, 1, Tier.L1)), 0.0)
    residency = lineage_residency(match, [100, 250, 255, 900], 900, page_size=64)
    assert residency.runs == (Run(0, 192, Tier.L1), Run(192, 704, Tier.L1))


def test_an_empty_message_leaves_no_run() -> None:
    match = Match((BlockRun(0, 1, Tier.L2), BlockRun(1, 1, Tier.L1)), 0.0)
    assert lineage_residency(match, [0, 50], 60).runs == (Run(0, 50, Tier.L1),)
