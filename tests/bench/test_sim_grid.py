"""The sensitivity grid: what each point assumes, and that nothing else moves."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bench.simulate.experiments import Choice
from bench.simulate.grid import Assumption, assumptions, grid, grid_table
from costmodel.roofline import kv_tokens


def test_points() -> None:
    assert len(assumptions(full=True)) == 36
    one_at_a_time = assumptions(full=False)
    assert one_at_a_time[0] == Assumption()
    assert [each.name for each in one_at_a_time[1:]] == [
        "TP8 fp8 HBM x1 MFU x0.5",
        "TP8 fp8 HBM x1 MFU x1.5",
        "TP8 fp8 HBM x0.5 MFU x1",
        "TP8 fp8 HBM x2 MFU x1",
        "TP8 bf16 HBM x1 MFU x1",
        "TP4 fp8 HBM x1 MFU x1",
    ]


def test_every_point_changes_what_it_says() -> None:
    points = {each.name: found["A"] for each, found in grid(Choice(horizon_s=60), 1, full=False, configs=["A"])}
    held = {name: kv_tokens(e.cluster.accelerator, e.cluster.model, e.cluster.deployment) for name, e in points.items()}
    frozen = held["TP8 fp8 HBM x1 MFU x1"]
    assert held["TP8 fp8 HBM x0.5 MFU x1"] == pytest.approx(frozen / 2, rel=1e-3)
    assert held["TP8 fp8 HBM x2 MFU x1"] == pytest.approx(frozen * 2, rel=1e-3)
    assert held["TP8 bf16 HBM x1 MFU x1"] == pytest.approx(frozen / 2, rel=1e-3)
    assert held["TP4 fp8 HBM x1 MFU x1"] == pytest.approx(frozen, rel=1e-3), "replicated KV: a rank holds as much at any width"
    assert held["TP8 fp8 HBM x1 MFU x1.5"] == frozen
    slow, fast = (points[f"TP8 fp8 HBM x1 MFU x{factor}"].cluster.truth.prefill.ms_per_token for factor in ("0.5", "1.5"))
    assert slow == pytest.approx(3 * fast)


def test_the_table_tells_which_configuration_comes_first() -> None:
    def found(p99_s: float, hit: float | None) -> dict[str, Any]:
        return {"turns": 9, "ttft_s": {"p99": p99_s}, "first_call_hit": hit, "tokens_per_s": 41_263.0}

    slow = {"x slow A": found(9.5, 0.525), "x slow B": found(0.5, None), "x slow C": found(0.25, 0.97)}
    nothing: dict[str, Any] = {f"x fast {name}": {"turns": 0} for name in "ABC"}
    out = io.StringIO()
    Console(file=out, width=160).print(grid_table(slow | nothing, ["A", "B", "C"], "grid"))
    shown = [line for line in out.getvalue().splitlines() if "x " in line]
    assert [cell.strip() for cell in shown[0].split("│")[1:-1]] == [
        "x slow",
        "9.50 / 0.50 / 0.25",
        "52 / - / 97",
        "41 / 41 / 41",
        "C < B < A",
    ]
    assert [cell.strip() for cell in shown[1].split("│")[1:3]] == ["x fast", "-"]
