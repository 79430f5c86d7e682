"""Where turns go, as counted; and how often they come."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.values import Decision, Scored, Terms, WorkerKey
from kvtier.prefetch.arrivals import Arrivals
from kvtier.prefetch.destination import DestinationModel, Forecast, margin_ms

A, B, C = WorkerKey("a"), WorkerKey("b"), WorkerKey("c")


def forecast(margin: float, *, moves: bool = True) -> Forecast:
    return Forecast(A, "n", "p", moves, margin)


def odds(model: DestinationModel, margin: float, pool: str = "p", *, moves: bool = True) -> float:
    return model.odds(pool, margin, moves=moves)


def test_odds_are_what_came_true_at_such_a_margin() -> None:
    model = DestinationModel()
    before = odds(model, 100.0)
    for number in range(200):
        model.settled(forecast(100.0), right=number % 10 == 0)
        model.settled(forecast(3_000.0), right=True)
    assert odds(model, 100.0) == pytest.approx(0.1, abs=0.02)
    assert odds(model, 3_000.0) > 0.95
    assert odds(model, 8.0) == odds(model, 8.0, "other")
    assert odds(model, 100.0, "other") == before


def test_a_tie_is_believed_less_than_a_clear_case_and_no_alternative_is_certain() -> None:
    model = DestinationModel()
    assert odds(model, 0.0) < odds(model, 500.0) < odds(model, 5_000.0) < odds(model, inf) == 1.0
    model.settled(forecast(inf), right=False)
    assert odds(model, inf) == 1.0


def test_threads_that_stay_say_nothing_of_those_that_move() -> None:
    model = DestinationModel()
    before = odds(model, 100.0)
    for _ in range(50):
        model.settled(forecast(100.0, moves=False), right=True)
    assert odds(model, 100.0) == before < 0.75 < odds(model, 100.0, moves=False)


def test_old_forecasts_fade() -> None:
    model = DestinationModel()
    for _ in range(2_000):
        model.settled(forecast(100.0), right=True)
    for _ in range(500):
        model.settled(forecast(100.0), right=False)
    assert odds(model, 100.0) < 0.3


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), max_size=50), st.floats(-1e6, 1e6))
def test_odds_are_probabilities(seen: list[tuple[float, bool]], margin: float) -> None:
    model = DestinationModel()
    for each, right in seen:
        model.settled(forecast(each), right=right)
    assert 0.0 < odds(model, margin) < 1.0


def scored(prefill: WorkerKey, ms: float, queue_ms: float = 0.0) -> Scored:
    return Scored(
        prefill,
        WorkerKey("d"),
        0,
        None,
        Terms(queue_ms=queue_ms, compute_ms=ms),
    )


def test_the_margin_is_to_the_cheapest_of_another_node() -> None:
    others = (scored(A, 11.0), scored(B, 30.0), scored(C, 50.0))
    decision = Decision(scored(A, 10.0), others, "cost", "")
    assert margin_ms(decision) == 20.0
    assert margin_ms(decision, {A, B}) == 40.0
    assert margin_ms(decision, {A, B, C}) == inf
    assert margin_ms(Decision(scored(B, 30.0), (scored(A, 10.0),), "sticky", "")) == -20.0


def test_a_queue_is_no_margin() -> None:
    """The thread's own worker is only busy now: what is staged elsewhere must save more than that is dearer without a queue."""
    decision = Decision(scored(A, 900.0), (scored(B, 50.0, queue_ms=4_000.0),), "cost", "")
    model = DestinationModel()
    assert margin_ms(decision) == -850.0
    assert odds(model, -850.0) == odds(model, -850.0 + 800.0) < odds(model, -850.0 + 860.0)
    for _ in range(50):
        model.settled(forecast(-850.0), right=False)
    assert odds(model, -1.0) < 0.1 < odds(model, 0.0)


def test_arrivals_are_of_the_last_seconds() -> None:
    arrivals = Arrivals()
    assert arrivals.turns_per_ms(A, 0.0) == 0.0
    for number in range(20):
        arrivals.came(A, 500.0 * number)
    assert arrivals.turns_per_ms(A, 9_600.0) == pytest.approx(0.002)
    assert arrivals.turns_per_ms(A, 15_000.0) == pytest.approx(0.002)
    assert arrivals.turns_per_ms(A, 31_000.0) == 0.0
    assert arrivals.turns_per_ms(B, 9_600.0) == 0.0
