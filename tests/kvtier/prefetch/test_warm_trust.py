"""What warm requests came to corrects what the next ones may promise."""

from __future__ import annotations

import pytest

from kvtier.prefetch.warm_trust import WarmTrust

MINUTE_MS = 60_000.0


def test_odds_are_believed_until_something_is_known() -> None:
    assert WarmTrust().factor(0.0) == 1.0


def test_what_is_used_less_than_expected_is_trusted_less() -> None:
    trust = WarmTrust()
    for number in range(40):
        trust.settled(0.8, used=number % 4 == 0, now_ms=0.0)
    assert trust.factor(0.0) == pytest.approx((10 + 4) / (32 + 4))


def test_more_use_than_expected_is_no_reason_to_promise_more() -> None:
    trust = WarmTrust()
    for _ in range(40):
        trust.settled(0.7, used=True, now_ms=0.0)
    assert trust.factor(0.0) == 1.0


def test_old_outcomes_fade_so_that_it_is_tried_again() -> None:
    trust = WarmTrust()
    for _ in range(20):
        trust.settled(0.8, used=False, now_ms=0.0)
    factors = [trust.factor(minutes * MINUTE_MS) for minutes in (0, 10, 20, 40, 120)]
    assert factors == sorted(factors)
    assert factors[0] < 0.25 < 0.95 < factors[-1]
