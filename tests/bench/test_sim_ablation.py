"""The ablation knows every guard by itself, and reckons changes seed by seed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from bench.simulate.ablation import build_ablation, deltas, variants
from costmodel.params import GUARDS, CostParams
from loadback.commands import build


def test_every_guard_that_is_on_is_switched_off_once() -> None:
    found = variants()
    defaults = msgspec.structs.asdict(CostParams())
    on = {guard for guard, off in GUARDS.items() if defaults[guard] != off}
    assert set(found) == {"all guards", "predict_on_route", "eviction_discount on"} | on
    assert found["eviction_discount on"].cost == CostParams(eviction_discount=1.0)
    assert found["all guards"].cost == CostParams()
    assert not found["predict_on_route"].predict
    for guard in on:
        changed = {key: value for key, value in msgspec.structs.asdict(found[guard].cost).items() if value != defaults[key]}
        assert changed == {guard: GUARDS[guard]}


@pytest.mark.slow
def test_changes_are_against_the_same_seed() -> None:
    runs = build_ablation(["fork"], [1, 2], 0.1)
    assert {run.run.experiment.settings.horizon_s for run in runs} == {90.0}

    def told(ttft: float, e2e: float) -> dict[str, Any]:
        return {"ttft_s": {"p99": ttft}, "e2e_s": {"p90": e2e}}

    results = {run.label: told(2.0 * run.seed, 10.0) for run in runs} | {"fork switch_margin_ms 2": told(5.0, 8.0)}
    found = deltas(results, runs)["fork"]
    assert found["all guards"]["ttft_p99_s"] == [2.0, 4.0]
    assert found["switch_margin_ms"]["ttft_p99_change"] == [0.0, 0.25]
    assert found["switch_margin_ms"]["e2e_p90_change"] == pytest.approx([0.0, -0.2])
    with pytest.raises(ValueError, match="choose from weka"):
        build_ablation(["chat"], [1], 1.0)


@pytest.mark.slow
def test_the_command_prints_a_row_a_guard() -> None:
    arguments = ["sim", "ablation", "--experiments", "fork", "--seeds", "1", "--scale", "0.1", "--json"]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    line = json.loads(result.output.strip().splitlines()[-1])
    assert list(line["configs"]["fork"]) == list(variants())
