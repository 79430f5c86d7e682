"""What a turn's time to its first token teaches, and the factor that waits are off by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.lesson import lesson
from costmodel.values import PrefillRates, Terms
from costmodel.wait import WaitFactor

RATES = PrefillRates(10.0, 0.1)


def test_a_turn_that_hardly_waited_tells_of_prefill() -> None:
    told = lesson(Terms(queue_ms=5.0, exposed_ms=10.0, compute_ms=99.0, transfer_ms=15.0), 150.0, RATES, 1000, 0)
    assert told.prefill_ms == pytest.approx(120.0)
    assert told.queue is told.admit is None


@pytest.mark.parametrize("which", ["queue", "admit"])
def test_one_that_waited_tells_of_the_longer_wait(which: str) -> None:
    terms = Terms(queue_ms=300.0 if which == "queue" else 20.0, admit_ms=300.0 if which == "admit" else 20.0, transfer_ms=10.0)
    told = lesson(terms, 600.0, RATES, 1000, 200)
    waited = getattr(told, which)
    assert (waited.predicted_ms, waited.actual_ms) == (320.0, pytest.approx(600 - 10 - 90))
    assert told.prefill_ms is None


def test_a_factor_finds_the_median() -> None:
    factor = WaitFactor()
    for n in range(400):
        off = 50.0 if n % 5 == 0 else 2.0  # single waits may be off by anything
        factor.observe(100.0 * factor.value, 100.0 * off)
    assert factor.value == pytest.approx(2.0, rel=0.1)


@given(st.lists(st.tuples(st.floats(), st.floats())))
def test_whatever_it_is_told_it_stays_within_bounds(told: list[tuple[float, float]]) -> None:
    factor = WaitFactor()
    for predicted, actual in told:
        factor.observe(predicted, actual)
    assert 1 / 3 - 1e-9 <= factor.value <= 3 + 1e-9
