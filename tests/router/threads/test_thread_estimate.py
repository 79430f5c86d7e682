from __future__ import annotations

import pytest

from router.threads.estimate import Estimator, blend


def test_the_first_report_replaces_the_prior() -> None:
    rates = Estimator().of("m")
    assert rates.learn_prompt(1000, 500) == 0.5
    assert rates.tokens_per_byte == 0.5
    rates.learn_output(40)
    assert rates.output_tokens == 40


def test_later_reports_move_the_average() -> None:
    rates = Estimator().of("m")
    for _ in range(200):
        rates.learn_prompt(1000, 250)
        rates.learn_output(100)
    rates.learn_prompt(1000, 500)
    rates.learn_output(200)
    assert rates.tokens_per_byte == pytest.approx(0.275)
    assert rates.output_tokens == pytest.approx(110)


@pytest.mark.parametrize(("size", "tokens", "ratio"), [(0, 5, 2.0), (1, 10_000, 2.0), (10_000, 1, 1 / 64)])
def test_implausible_reports_are_bounded(size: int, tokens: int, ratio: float) -> None:
    assert Estimator().of("m").learn_prompt(size, tokens) == ratio


def test_models_are_apart_and_shared() -> None:
    estimator = Estimator()
    estimator.of("m").learn_output(9)
    assert estimator.of("m").output_tokens == 9
    assert estimator.of("n").output_tokens == 256


def test_a_thread_blends_its_own_replies() -> None:
    assert blend(0.0, 50) == 50
    assert blend(100.0, 200) == pytest.approx(130)
    assert blend(1.0, 0) == 1.0
