"""The engine model fitted to a real server, very small: what is cached is predicted to the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.validate.cli import as_json
from bench.validate.experiment import Plan, run_experiment
from bench.validate.probes import Grid

MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"
pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SMALL = Plan(
    repeats=1, sessions=2, concurrency=2, ramp_ms=200.0, grid=Grid(cached=(0, 512), new=(64,), batches=(2,), repeats=1)
)


async def test_a_real_server_is_fitted_and_predicted() -> None:
    told: list[str] = []
    outcome = await run_experiment(SMALL, MODEL_DIR, told.append)
    (run,) = as_json(outcome)["runs"]
    assert run["calls"]["held_out"] == sum(1 for _ in outcome.repeats[0].predicted) > 2
    assert run["cached_tokens"]["measured"] == run["cached_tokens"]["predicted"] > 0
    assert all(rate > 0 for rate in run["fitted"].values())
    assert told
