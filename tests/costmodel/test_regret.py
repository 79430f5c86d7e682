"""What the runner-up would have been worth, corrected by how far its predictions are off."""

from __future__ import annotations

import pytest

from costmodel.accuracy import Accuracy
from costmodel.regret import Regret


def test_nothing_is_regretted_before_anything_was_looked_at() -> None:
    assert (Regret().mean_ms, Regret().share) == (None, None)


def test_a_dearer_runner_up_is_no_regret() -> None:
    regret = Regret()
    regret.observe(100.0, 150.0, Accuracy())
    assert (regret.mean_ms, regret.share, regret.turns) == (0.0, 0.0, 1)
    regret.observe(100.0, 60.0, Accuracy())
    assert (regret.mean_ms, regret.share) == (20.0, 0.5)


def test_a_worker_that_takes_longer_than_predicted_is_regretted_less() -> None:
    late = Accuracy()
    late.observe(50.0, 100.0)  # takes twice what is predicted
    regret = Regret()
    regret.observe(100.0, 60.0, late)
    assert regret.mean_ms == 0.0
    regret.observe(200.0, 60.0, late)
    assert regret.mean_ms == pytest.approx(40.0)
