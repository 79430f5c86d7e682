"""Estimators: they find the truth from noisy data and survive nonsense."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.calibrate import DecodeEstimator, LinkEstimator, PrefillEstimator
from costmodel.values import DecodeRates, Link, PrefillRates

PRIOR = PrefillRates(16.5, 0.0152, 4.2e-7)
RATIO = PRIOR.ms_per_token2 / PRIOR.ms_per_token


@settings(max_examples=40, deadline=None)
@given(
    base_ms=st.floats(1, 2000),
    ms_per_token=st.floats(0.0005, 2),
    seed=st.integers(0, 2**16),
)
@example(1.0, 1.0, 1676)  # the first turn is short, and near the prior by chance
@example(1.0, 1.0, 2421)
def test_prefill_curve_is_found(base_ms: float, ms_per_token: float, seed: int) -> None:
    rng = random.Random(seed)
    estimator = PrefillEstimator(PRIOR)

    def truth(uncached: int, cached: int) -> float:
        total = uncached + cached
        return base_ms + ms_per_token * (uncached + RATIO * (total**2 - cached**2))

    for _ in range(400):
        uncached, cached = int(10 ** rng.uniform(1.5, 4.5)), rng.randrange(60_000)
        estimator.observe(uncached, truth(uncached, cached) * rng.uniform(0.95, 1.05), cached)
    rates = estimator.rates
    for uncached, cached in ((50, 0), (900, 40_000), (20_000, 0)):
        predicted = rates.base_ms + uncached * (rates.ms_per_token + rates.ms_per_token2 * (uncached + 2 * cached))
        assert predicted == pytest.approx(truth(uncached, cached), rel=0.15)


@pytest.mark.parametrize("restored", [0, 6_600])
def test_a_hit_that_comes_first_says_nothing_of_what_computing_costs(restored: int) -> None:
    estimator = PrefillEstimator(PrefillRates(0.0, 0.0152, 0.0))
    estimator.observe(40, 105.0, restored)
    rates = estimator.rates
    assert rates.base_ms + 40 * rates.ms_per_token == pytest.approx(105.0)
    assert rates.ms_per_token == pytest.approx(0.0152, rel=0.05)
    for tokens in (8_000, 60, 5_000, 12_000, 40, 3_000):
        estimator.observe(tokens, 20 + 0.04 * tokens)
    assert estimator.rates.ms_per_token == pytest.approx(0.04, rel=0.1)


def test_the_cost_of_cached_tokens_scales_with_that_of_new_ones() -> None:
    estimator = PrefillEstimator(PrefillRates(10.0, 0.1, 0.0, ms_per_cached_token=0.03))
    for n in range(400):
        uncached, cached = 20 + n * 37 % 500, n * 101 % 3000
        estimator.observe(uncached, 5 + 0.2 * uncached + 0.06 * cached, cached)
    rates = estimator.rates
    assert rates.ms_per_token == pytest.approx(0.2, rel=0.05)
    assert rates.ms_per_cached_token == pytest.approx(0.06, rel=0.05)


def test_prefill_curve_follows_a_change() -> None:
    estimator = PrefillEstimator(PRIOR)
    for speed in (1.0, 3.0):
        for n in range(300):
            uncached = 100 + n * 37 % 9000
            estimator.observe(uncached, speed * (20 + 0.02 * uncached * (1 + RATIO * uncached)))
    assert estimator.rates.ms_per_token == pytest.approx(0.06, rel=0.1)


def test_throughput_comes_from_counter_differences() -> None:
    estimator = PrefillEstimator(PRIOR)
    estimator.observe_report(5_000, 7_000_000)
    assert estimator.rates == PRIOR, "one report is no difference"
    estimator.observe_report(15_000, 7_400_000)
    rates = estimator.rates
    assert rates.queue_ms_per_token == rates.ms_per_token == pytest.approx(0.04)
    for i in range(2, 40):
        estimator.observe_report(5_000 + i * 10_000, 7_000_000 + i * 800_000)
    assert estimator.rates.queue_ms_per_token == pytest.approx(0.08, rel=0.01)


def test_counters_are_kept_by_rank_and_restarts_are_no_sample() -> None:
    estimator = PrefillEstimator(PRIOR)
    for rank, offset in ((0, 0), (1, 10**9)):
        estimator.observe_report(offset, offset, rank)
        estimator.observe_report(offset + 1000, offset + 50_000, rank)
    assert estimator.rates.queue_ms_per_token == pytest.approx(0.05)
    estimator.observe_report(10, 10, 1)
    estimator.observe_report(10, 10, 1)
    estimator.observe_report(None, None, 1)
    assert estimator.rates.queue_ms_per_token == pytest.approx(0.05)


def test_the_fixed_cost_of_a_warm_request_is_no_throughput() -> None:
    estimator = PrefillEstimator(PRIOR)
    estimator.observe_report(0, 0)
    estimator.observe_report(1, 6_043)
    assert estimator.rates == PRIOR
    estimator.observe_report(2_000, 106_000)
    assert estimator.rates.ms_per_token == pytest.approx(0.053)


def test_a_timed_prefill_takes_over_from_throughput() -> None:
    estimator = PrefillEstimator(PRIOR)
    estimator.observe_report(0, 0)
    estimator.observe_report(1_000, 100_000)
    for n in range(200):
        uncached = 100 + n * 37 % 9000
        estimator.observe(uncached, 20 + 0.02 * uncached * (1 + RATIO * uncached))
    assert estimator.rates.ms_per_token == pytest.approx(0.02, rel=0.05)
    assert estimator.rates.queue_ms_per_token == pytest.approx(0.1)


@given(base_ms=st.floats(0.5, 200), per_running=st.floats(0.01, 10), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_inter_token_latency_is_found(base_ms: float, per_running: float, seed: int) -> None:
    rng = random.Random(seed)
    estimator = DecodeEstimator(DecodeRates(5.7, 0.2))
    for _ in range(400):
        batch = rng.randrange(1, 65)
        estimator.observe(batch, (base_ms + per_running * batch) * rng.uniform(0.95, 1.05))
    for batch in (1, 20, 64):
        predicted = estimator.rates.itl_base_ms + estimator.rates.itl_ms_per_running * batch
        assert predicted == pytest.approx(base_ms + per_running * batch, rel=0.15)


def test_one_batch_size_only_still_predicts_it() -> None:
    estimator = DecodeEstimator(DecodeRates(5.7, 0.2))
    for _ in range(5000):
        estimator.observe(4, 42.0)
    rates = estimator.rates
    assert rates.itl_base_ms + 4 * rates.itl_ms_per_running == pytest.approx(42.0, rel=0.01)


def test_link_bandwidth_is_what_a_lone_flow_would_get() -> None:
    estimator = LinkEstimator(Link(1.0, 40e6))
    for flows in (0, 1, 3) * 20:
        estimator.observe(10e6, 1.0 + 10e6 * (1 + flows) / 25e6, flows)
    assert estimator.link.bytes_per_ms == pytest.approx(25e6)
    assert estimator.link.latency_ms == 1.0


def test_link_takes_the_engines_own_figures_and_lowers_a_latency_too_high() -> None:
    estimator = LinkEstimator(Link(50.0, 40e6))
    for _ in range(50):
        estimator.observe_rate(2e6)
        estimator.observe(1000, 0.5)
    assert estimator.link.bytes_per_ms < 3e6
    assert estimator.link.latency_ms == pytest.approx(0.5, rel=0.1)
    estimator.observe_rate(2e6, 0.5)


anything = st.floats(allow_nan=True, allow_infinity=True)
counters = st.none() | st.integers(-(10**18), 10**18)


@settings(max_examples=100, deadline=None)
@given(
    timed=st.lists(st.tuples(st.integers(-(10**9), 10**9), anything, st.integers(-(10**9), 10**9)), max_size=30),
    reports=st.lists(st.tuples(counters, counters), max_size=30),
    points=st.lists(st.tuples(anything, anything), max_size=60),
)
def test_rates_stay_positive_and_finite(
    timed: list[tuple[int, float, int]], reports: list[tuple[int | None, int | None]], points: list[tuple[float, float]]
) -> None:
    prefill, decode, link = PrefillEstimator(PRIOR), DecodeEstimator(DecodeRates(5.7)), LinkEstimator(Link(1.0, 1e6))
    for uncached, ms, cached in timed:
        prefill.observe(uncached, ms, cached)
    for tokens, busy in reports:
        prefill.observe_report(tokens, busy)
    for x, y in points:
        decode.observe(x, y)
        link.observe(x, y)
        link.observe_rate(x, y)
    rates = prefill.rates
    for value in (rates.base_ms, rates.ms_per_token, decode.rates.itl_base_ms, link.link.latency_ms, link.link.bytes_per_ms):
        assert math.isfinite(value)
        assert value > 0
    for value in (rates.ms_per_token2, rates.queue_ms_per_token, decode.rates.itl_ms_per_running):
        assert math.isfinite(value)
        assert value >= 0


def test_a_cold_start_is_forgotten_within_a_few_turns() -> None:
    estimator = PrefillEstimator(PrefillRates(10.0, 0.1))
    for uncached, prefill_ms in ((402, 3000.0), (402, 3000.0), (360, 900.0), (360, 900.0)):
        estimator.observe(uncached, prefill_ms)
    for n in range(8):
        estimator.observe(50 + n * 37 % 200, 20 + 0.1 * (50 + n * 37 % 200))
    rates = estimator.rates
    assert rates.base_ms + 100 * rates.ms_per_token == pytest.approx(30, rel=0.3)
