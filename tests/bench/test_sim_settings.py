"""What `--assume` takes, and that an experiment runs under it."""

from __future__ import annotations

import pytest

from bench.simulate.experiments import Choice
from bench.simulate.settings import ASSUMED, Settings, parse_assumed


def test_pairs_are_read() -> None:
    assert parse_assumed("prior_error=0, gap_factor=0.5") == {"prior_error": 0.0, "gap_factor": 0.5}
    assert parse_assumed("") == {}


@pytest.mark.parametrize("text", ["speed=9", "prior_error=-1", "load_poll_ms=0", "prior_error=much", "horizon_s=5"])
def test_what_cannot_be_assumed(text: str) -> None:
    with pytest.raises(ValueError, match=r"--assume|could not convert"):
        parse_assumed(text)


@pytest.mark.parametrize("key", ASSUMED)
def test_every_one_changes_a_setting(key: str) -> None:
    default = Settings(60.0)
    changed = Choice(assumed={key: 7.0}).apply(default)
    assert getattr(changed, key) == 7.0 != getattr(default, key)
