"""What `--assume` takes, and that an experiment runs under it."""

from __future__ import annotations

import pytest

from bench.simulate.experiments import Choice
from bench.simulate.settings import ASSUMED, Settings, parse_assumed


def test_pairs_are_read() -> None:
    assert parse_assumed("prior_error=0, gap_factor=0.5") == {"prior_error": 0.0, "gap_factor": 0.5}
    assert parse_assumed("") == {}


@pytest.mark.parametrize("key", ["speed=9", "horizon_s=5"])
def test_what_there_is_not(key: str) -> None:
    with pytest.raises(ValueError, match=r"--assume knows no '\w+': choose from event_lag_ms"):
        parse_assumed(key)


@pytest.mark.parametrize("value", ["-1", "1", "2", "nan", "inf", "much", ""])
def test_an_error_that_no_belief_can_have(value: str) -> None:
    with pytest.raises(ValueError, match=r"--assume wants (a number for )?prior_error"):
        parse_assumed(f"gap_factor=1,prior_error={value}")


@pytest.mark.parametrize("pair", ["load_poll_ms=0", "load_poll_ms=inf", "event_lag_ms=inf", "gap_factor=nan", "hold_ms"])
def test_times_that_do_not_pass(pair: str) -> None:
    with pytest.raises(ValueError, match=f"--assume wants (a number for )?{pair.partition('=')[0]}"):
        parse_assumed(pair)


@pytest.mark.parametrize("key", ASSUMED)
def test_every_one_changes_a_setting(key: str) -> None:
    default = Settings(60.0)
    changed = Choice(assumed={key: 7.0}).apply(default)
    assert getattr(changed, key) == 7.0 != getattr(default, key)
