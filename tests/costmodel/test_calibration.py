"""What is kept of calibration, and how its accuracy is told."""

from __future__ import annotations

import math

import msgspec
import pytest

from costmodel.accuracy import Accuracy
from costmodel.calibration import Calibration
from costmodel.values import DecodeRates, Link, PrefillRates


def test_it_survives_json() -> None:
    kept = Calibration(PrefillRates(10.0, 0.1, 1e-7, 0.2), DecodeRates(5.0, 0.1, 900.0), Link(1.0, 1e6), 1.2, 0.8, 0.9)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Calibration) == kept


@pytest.mark.parametrize("bad", [{"queue_factor": -1.0}, {"prefill": PrefillRates(math.inf, 0.1)}, {"reuse_share": math.nan}])
def test_nonsense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="finite"):
        Calibration(**bad)  # type: ignore[arg-type]


def test_the_median_error_and_its_sign() -> None:
    accuracy = Accuracy()
    assert accuracy.error is accuracy.bias is None
    for predicted in (80.0, 90.0, 120.0):
        accuracy.observe(predicted, 100.0)
    assert accuracy.error == pytest.approx(0.2)
    assert accuracy.bias == pytest.approx(0.1), "turns take longer than predicted"


def test_a_change_that_is_not_learned_yet_is_drift() -> None:
    accuracy = Accuracy()
    for _ in range(160):
        accuracy.observe(95.0, 100.0)
    assert not accuracy.drifting
    for _ in range(40):
        accuracy.observe(50.0, 100.0)
    assert accuracy.drifting
    for _ in range(200):
        accuracy.observe(50.0, 100.0)
    assert not accuracy.drifting, "by now that is how it is"
