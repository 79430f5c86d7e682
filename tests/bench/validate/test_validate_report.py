"""Ratios of quantiles with their intervals, and the report: every run stays in it, misses too."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from bench.simulate.workload import Call
from bench.validate.cli import as_json, table
from bench.validate.experiment import Outcome, Plan, Repeat, sets_of, within
from bench.validate.intervals import Ratio, by_session, ratio
from bench.validate.timed import Timed, quantile
from bench.validate.virtual import Fitted
from engine_adapters.emulator.model.params import EngineParams

CALL = Call(160, 2, (1, 10))


def timed(session: str, *ttfts_ms: float) -> list[Timed]:
    return [Timed(session, index, CALL, 0.0, ttft_ms, ttft_ms + 5, 16) for index, ttft_ms in enumerate(ttfts_ms)]


def repeat(number: int, factor: float) -> Repeat:
    measured = [*timed("a", 10, 20, 30), *timed("b", 40, 50)]
    predicted = [msgspec.structs.replace(each, ttft_ms=each.ttft_ms * factor) for each in measured]
    return Repeat(number, number % 2 == 1, Fitted(EngineParams()), tuple(timed("c", 1)), tuple(measured), tuple(predicted))


def test_quantiles_are_nearest_ranks() -> None:
    assert [quantile([3, 1, 2, 4], share) for share in (0.25, 0.5, 0.9)] == [1, 2, 4]
    with pytest.raises(ValueError, match="no call"):
        quantile([], 0.5)


def test_an_interval_holds_its_ratio_and_is_the_same_for_a_seed() -> None:
    pairs = [([8.0 + each, 11.0], [10.0, 12.0 + each]) for each in range(6)]
    found = ratio(pairs, 0.5, 200, Random(1))
    assert found.low <= found.value <= found.high
    assert found == ratio(pairs, 0.5, 200, Random(1))


def test_equal_sessions_leave_no_doubt() -> None:
    assert ratio([([9.0], [10.0])] * 5, 0.9, 50, Random(3)) == Ratio(0.9, 0.9, 0.9)


def test_sessions_are_matched_by_name() -> None:
    predicted, measured = [*timed("b", 2), *timed("a", 1)], [*timed("a", 3), *timed("b", 4)]
    assert by_session(predicted, measured) == [([1], [3]), ([2], [4])]
    with pytest.raises(KeyError):
        by_session(timed("a", 1), measured)


def test_twenty_percent_either_way_is_within() -> None:
    assert [within(Ratio(value, 0, 9)) for value in (0.79, 0.81, 1.19, 1.21)] == [False, True, True, False]


def test_the_report_keeps_every_run_and_its_misses() -> None:
    outcome = Outcome(Plan(repeats=3), (repeat(0, 1.0), repeat(1, 1.5), repeat(2, 1.1)))
    told = as_json(outcome)
    assert [run["repeat"] for run in told["runs"]] == [0, 1, 2]
    assert [run["measured_first"] for run in told["runs"]] == ["fit", "held_out", "fit"]
    assert told["runs_within_20_percent"] == {"p50": 2, "p90": 2}
    assert told["runs"][1]["ratio"]["p50"]["value"] == 1.5
    assert told["runs"][1]["within_20_percent"] == {"p50": False, "p90": False}
    assert told["runs"][0]["cached_tokens"] == {"measured": 80, "predicted": 80}
    assert set(told["ratio"]["p90"]) == {"value", "low", "high"}
    assert table(outcome).row_count == 4


@pytest.mark.slow
def test_what_is_fitted_on_is_never_what_is_predicted() -> None:
    sets = sets_of(Plan(repeats=2, sessions=3))
    names = [session.name for pair in sets for part in (pair.fit, pair.held) for session in part]
    assert len(set(names)) == len(names) == 12
