"""The figures of a swarm: hit rates count tokens, percentiles are ranks, errors are counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.swarm.turns import TurnRecord, hit_rate, percentile, summary


def turn(
    prompt: int = 100, cached: int | None = 0, *, first: bool = False, ttft_ms: float | None = 5.0, error: str | None = None
) -> TurnRecord:
    return TurnRecord("s1", "s1", 0, first, 0.0, prompt_tokens=prompt, cached_tokens=cached, ttft_ms=ttft_ms, error=error)


def test_hit_rate_counts_tokens_not_turns() -> None:
    assert hit_rate([turn(1000, 0), turn(1000, 1000), turn(2000, 1000)]) == 0.5


def test_hit_rate_leaves_out_what_nobody_told() -> None:
    assert hit_rate([turn(1000, 500), turn(9000, None), turn(9000, 9000, error="died")]) == 0.5
    assert hit_rate([turn(1000, None)]) is None
    assert hit_rate([]) is None


def test_summary_splits_first_and_later_calls() -> None:
    turns = [turn(100, 10, first=True, ttft_ms=1.0), turn(100, 90, ttft_ms=3.0), turn(0, None, ttft_ms=None, error="x")]
    assert summary("emulator", turns) == {
        "engine": "emulator",
        "turns": 3,
        "errors": 1,
        "first_call_hit": 0.1,
        "later_call_hit": 0.9,
        "ttft_ms": {"p50": 1.0, "p90": 3.0, "p99": 3.0},
    }


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentile_is_one_of_the_values_and_grows(values: list[float], share: float) -> None:
    assert percentile(values, share) in values
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.5) is None
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
