"""What the comparison counts, and in what order policies take turns."""

from __future__ import annotations

from typing import Any

import pytest

from bench.placement.cli import table
from bench.placement.experiment import OURS, POLICIES, Outage, Outcome, Plan, Run, Steady, is_first, order
from bench.placement.figures import as_json, figures
from bench.placement.routers import Predicted
from bench.placement.turn import Turn

OUTAGES = (Outage(0, 4.0, 6.0), Outage(1, 9.0, 11.0))


def turn(index: int, ttft_ms: float, cached: int, **more: Any) -> Turn:
    return Turn("a", index, 0.0, index == 0, ttft_ms, ttft_ms + 10, 100, cached, {"L1": cached} if cached else {}, **more)


TURNS = (turn(0, 40, 0), turn(1, 10, 80), turn(2, 20, 90), turn(3, 0, 0, error="503"))


def told(policy: str, *ratios: float) -> tuple[Predicted, ...]:
    return tuple(Predicted("p0>d0", policy, 100.0 * ratio, 100.0) for ratio in ratios)


def test_failed_turns_are_counted_and_time_nothing() -> None:
    found = figures(TURNS)
    assert (found["turns"], found["errors"]) == (4, 1)
    assert found["ttft_ms"] == {"p50": 20, "p90": 40, "p99": 40}
    assert found["e2e_ms"] == {"p90": 50}
    assert (found["hit"], found["first_call_hit"], found["later_call_hit"]) == (0.5667, 0.0, 0.85)
    assert found["cached_tokens_by_tier"] == {"L1": 170}


def test_a_run_that_failed_as_a_whole_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no call"):
        figures(TURNS[3:])


def test_every_policy_runs_once_a_repeat_and_another_is_first() -> None:
    runs = list(order(len(POLICIES)))
    assert sorted(runs) == sorted((repeat, policy) for repeat in range(len(POLICIES)) for policy in POLICIES)
    assert [runs[repeat * len(POLICIES)][1] for repeat in range(len(POLICIES))] == list(POLICIES)


@pytest.mark.parametrize(
    ("last_ms", "now_ms", "first"),
    [(None, 10.0, True), (10.0, 20.0, False), (3999.0, 4000.0, True), (4000.0, 5000.0, False), (5000.0, 12_000.0, True)],
)
def test_a_call_is_first_again_once_a_worker_was_taken_out(last_ms: float | None, now_ms: float, first: bool) -> None:
    assert is_first(last_ms, now_ms, OUTAGES) is first


def test_the_report_has_every_policy_every_run_and_the_predictions() -> None:
    runs = tuple(Run(repeat, policy, TURNS, told(policy, 1.5) if policy in OURS else (), 2.0) for repeat, policy in order(2))
    steady = Steady(TURNS, told("cost", *([2.0] * 200), 1.1, 1.2, 0.9), {"p0": {"turns": 203}})
    outcome = Outcome(Plan(repeats=2), steady, runs)
    found = as_json(outcome)
    assert set(found["policies"]) == set(POLICIES)
    assert found["policies"]["cost"]["turns"] == 8
    assert [(run["repeat"], run["policy"]) for run in found["runs"]] == list(order(2))
    assert found["ttft_prediction"]["steady"]["error_p50_first_200"] == 1.0
    assert found["ttft_prediction"]["steady"]["error_p50_after_200"] == 0.1
    assert found["ttft_prediction"]["runs"]["cost"] == 0.5
    assert table(outcome).row_count == len(POLICIES)
