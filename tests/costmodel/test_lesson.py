"""What a turn's time to its first token teaches, and the factor that waits are off by."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.factor import MedianFactor
from costmodel.lesson import Lesson, lesson
from costmodel.restore import RestoreLegs
from costmodel.values import PrefillRates, Terms, Tier

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


DEEP = RestoreLegs(900, Tier.L3, host_ms=10.0, deep_ms=60.0)  # the 100 that are computed take 20 ms


def test_one_that_a_restore_held_up_tells_of_that() -> None:
    told = lesson(Terms(fetch_ms=60.0, exposed_ms=60.0, transfer_ms=5.0), 145.0, RATES, 1000, 900, DEEP)
    assert told.restore is not None
    assert (told.restore.tier, told.restore.predicted_ms) == (Tier.L3, 60.0)
    assert told.restore.actual_ms == pytest.approx(145 - 5 - 20)
    assert told.prefill_ms is told.queue is told.admit is None


def test_what_hid_a_part_of_it_is_part_of_it() -> None:
    host = RestoreLegs(900, Tier.L2, host_ms=60.0)
    told = lesson(Terms(fetch_ms=60.0, exposed_ms=40.0), 70.0, RATES, 1000, 900, host)
    assert told.restore is not None
    assert told.restore.actual_ms == pytest.approx(70 - 20 + 20), "compute hid as much as it took"
    half = lesson(Terms(fetch_ms=60.0, exposed_ms=50.0), 70.0, RATES, 1000, 900, host, overlap_rho=0.5)
    assert half.restore is not None
    assert half.restore.actual_ms == pytest.approx(70 - 20 + 10)


@pytest.mark.parametrize(
    ("cached", "ttft_ms", "legs"),
    [
        (900, 145.0, None),  # not told
        (400, 145.0, DEEP),  # most was computed
        (900, 23.0, RestoreLegs(900, Tier.L3, host_ms=1.0, deep_ms=2.0)),  # it held nothing up
    ],
)
def test_one_of_which_little_was_restored_tells_of_prefill(cached: int, ttft_ms: float, legs: RestoreLegs | None) -> None:
    legs = msgspec.structs.replace(legs, tokens=cached) if legs is not None else None
    told = lesson(Terms(fetch_ms=2.0, exposed_ms=2.0), ttft_ms, RATES, 1000, cached, legs)
    assert told.restore is None
    assert told.prefill_ms == pytest.approx(ttft_ms - 2)


def test_one_that_waited_tells_nothing_of_its_restore() -> None:
    told = lesson(Terms(queue_ms=100.0, fetch_ms=60.0, exposed_ms=60.0), 300.0, RATES, 1000, 900, DEEP)
    assert told.restore is None
    assert told.queue is not None


def test_before_prefill_is_known_a_restore_teaches_nobody() -> None:
    assert lesson(Terms(fetch_ms=60.0, exposed_ms=60.0), 145.0, RATES, 1000, 900, DEEP, settled=False) == Lesson()
    hidden = RestoreLegs(900, Tier.L3, host_ms=1.0, deep_ms=2.0)
    assert lesson(Terms(fetch_ms=2.0), 23.0, RATES, 1000, 900, hidden, settled=False).prefill_ms is not None


def test_a_restore_that_nobody_predicted_is_taken_for_prefill() -> None:
    told = lesson(Terms(), 145.0, RATES, 1000, 900, DEEP)
    assert (told.restore, told.prefill_ms) == (None, 145.0)


def test_a_factor_finds_the_median() -> None:
    factor = MedianFactor()
    for n in range(400):
        off = 50.0 if n % 5 == 0 else 2.0  # single waits may be off by anything
        factor.observe(100.0 * factor.value, 100.0 * off)
    assert factor.value == pytest.approx(2.0, rel=0.1)


@given(st.lists(st.tuples(st.floats(), st.floats())))
def test_whatever_it_is_told_it_stays_within_bounds(told: list[tuple[float, float]]) -> None:
    factor = MedianFactor()
    for predicted, actual in told:
        factor.observe(predicted, actual)
    assert 1 / 3 - 1e-9 <= factor.value <= 3 + 1e-9
