"""The index benchmark measures what it says; how long it takes is not this test's business."""

from __future__ import annotations

from bench.tiers_index import match_ms


def test_a_match_is_timed() -> None:
    assert match_ms(workers=8, workers_per_node=4, rounds=3) > 0
