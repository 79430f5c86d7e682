"""Gaps as survival: what is learned, from whom, and how much is kept."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.prefetch.reentry import ReentryModel
from kvtier.prefetch.survival import BUCKETS, EDGES_MS, NEVER, Survival, bucket_of

weights = st.lists(st.floats(0, 100), min_size=BUCKETS, max_size=BUCKETS).filter(lambda row: sum(row) > 1)


@given(weights, st.lists(st.floats(0, 1e8), min_size=2, max_size=8))
def test_returned_by_is_a_distribution(row: list[float], gaps: list[float]) -> None:
    survival = Survival(row)
    found = [survival.returned_by(gap) for gap in sorted(gaps)]
    assert found == sorted(found)
    assert all(0 <= share <= 1 + 1e-9 for share in found)


@given(weights, st.floats(0, 1e7), st.floats(0, 1e7))
def test_within_is_a_probability(row: list[float], elapsed: float, window: float) -> None:
    assert -1e-9 <= Survival(row).within(elapsed, window) <= 1 + 1e-6


@given(weights, st.floats(0, 1e7), st.floats(0.01, 0.99))
def test_first_instant_is_the_first_that_is_likely_enough(row: list[float], elapsed: float, least: float) -> None:
    survival = Survival(row)
    first = survival.first_instant(elapsed, 60_000, least)
    instants = [elapsed, *(edge for edge in EDGES_MS if edge > elapsed)]
    expected = next((instant for instant in instants if survival.within(instant, 60_000) >= least), None)
    assert first == expected


def test_quantiles_are_of_what_is_left() -> None:
    row = [0.0] * BUCKETS
    row[bucket_of(1_000)] = row[bucket_of(60_000)] = 1.0
    survival = Survival(row)
    assert survival.quantile(0, 0.25) < 1_500
    assert survival.quantile(10_000, 0.25) > 30_000
    assert survival.quantile(10_000_000, 0.5) == float("inf")


def test_a_thread_that_never_returns_is_not_expected() -> None:
    row = [0.0] * BUCKETS
    row[NEVER] = 1.0
    assert Survival(row).first_instant(0, 1e9, 0.01) is None


def test_before_anything_is_seen_tools_are_fast_and_people_are_not() -> None:
    model = ReentryModel()
    tool, person = model.survival("t", "bash", "cli"), model.survival("t", "", "cli")
    assert tool.within(100, 60_000) > 0.8
    assert person.within(100, 60_000) < 0.6
    assert person.within(0, 1e12) < 0.9  # some do not come back


def test_gaps_of_a_tool_are_learned_and_kept_apart() -> None:
    model, rng = ReentryModel(), Random(1)
    for i in range(200):
        model.returned(f"t{i}", "build", "cli", rng.lognormvariate(11.0, 1.0))  # around a minute, CV 131 %
        model.returned(f"t{i}", "read", "cli", rng.lognormvariate(4.0, 1.0))
    build, read = model.survival("new", "build", "cli"), model.survival("new", "read", "cli")
    assert build.within(0, 5_000) < 0.05
    assert read.within(0, 5_000) > 0.95
    assert build.quantile(0, 0.5) == pytest.approx(60_000, rel=0.5)


def test_a_thread_s_own_gaps_count_for_more_than_its_tools() -> None:
    model = ReentryModel()
    for i in range(100):
        model.returned(f"t{i}", "bash", "cli", 200.0)
    for _ in range(8):
        model.returned("slow", "bash", "cli", 30_000.0)
    assert model.survival("slow", "bash", "cli").within(1_000, 60_000) > 0.9
    assert (
        model.survival("slow", "bash", "cli").within(0, 1_000) < model.survival("other", "bash", "cli").within(0, 1_000) - 0.4
    )


def test_lost_threads_make_a_return_less_likely() -> None:
    model = ReentryModel()
    before = model.survival("t", "", "cli").within(0, 3_600_000)
    for i in range(50):
        model.lost(f"t{i}", "", "cli")
    assert model.survival("t", "", "cli").within(0, 3_600_000) < before / 2


def test_old_gaps_fade() -> None:
    model = ReentryModel()
    for i in range(1_000):
        model.returned(f"t{i}", "bash", "cli", 100.0)
    for i in range(1_000):
        model.returned(f"u{i}", "bash", "cli", 20_000.0)
    assert model.survival("new", "bash", "cli").within(0, 1_000) < 0.1


def test_memory_is_bounded() -> None:
    model = ReentryModel(max_threads=100)
    for i in range(20_000):
        model.returned(f"t{i}", f"tool{i}", f"client{i}", float(i))
    assert len(model) <= 4096 + 100
    model.forget("t19999")
    assert len(model) <= 4096 + 99
