"""A run's turns as Parquet and what is drawn and written from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.simulate.columns import read_turns, write_turns
from bench.simulate.report import turns_path, write_report
from bench.simulate.served import Served
from costmodel.values import WorkerKey
from loadback.commands import build


def turn(arrived_ms: float, first: bool) -> Served:
    key = WorkerKey("p0")
    return Served(
        arrived_ms, arrived_ms + 500, arrived_ms + 3000, 1000, 50, 300, 200, 100, 50, first, key, WorkerKey("d0"), 480.0, 2900.0
    )


def found() -> dict[str, Any]:
    return {
        "turns": 2,
        "ttft_s": {"p50": 0.5, "p90": 0.5, "p99": 0.5},
        "e2e_s": {"p90": 3.0},
        "tokens_per_s": 12.0,
        "hit": 0.6,
        "first_call_hit": 0.6,
        "later_call_hit": None,
        "first_call_ttft_s": 0.5,
        "later_call_ttft_s": None,
        "usd_per_million_tokens": None,
    }


def test_every_turn_is_a_row(tmp_path: Path) -> None:
    write_turns(tmp_path / "a" / "turns.parquet", [turn(0.0, True), turn(10.0, False)])
    columns = read_turns(tmp_path / "a" / "turns.parquet")
    assert columns["arrived_ms"] == [0.0, 10.0]
    assert columns["first_call"] == [True, False]
    assert (columns["prefill"], columns["decode"]) == (["p0", "p0"], ["d0", "d0"])
    assert columns["pool_tokens"] == [100, 100]


@pytest.mark.slow
def test_the_page_holds_everything(tmp_path: Path) -> None:
    for label in ("cost", "round robin"):
        write_turns(turns_path(tmp_path, label), [turn(0.0, True), turn(10.0, False)])
    results = {label: found() for label in ("cost", "round robin")}
    page = write_report(tmp_path, "a <title>", {"seed": 1}, results).read_text()
    assert "a &lt;title&gt;" in page
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page.replace("https://www.w3.org", ""), "nothing is loaded from elsewhere"
    assert json.loads((tmp_path / "result.json").read_text()) == {"seed": 1}
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet", ".png", ".json", ".html"}


@pytest.mark.slow
def test_pools_of_several_sizes_have_a_folder_each(tmp_path: Path) -> None:
    arguments = ["sim", "scale", "--workers", "2,4", "--policies", "cost", "--horizon-s", "30", "--out", str(tmp_path)]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    for size in ("2", "4"):
        assert (tmp_path / size / "report.html").exists()
        assert list(json.loads((tmp_path / size / "result.json").read_text())["policies"]) == ["cost"]


@pytest.mark.slow
def test_a_command_writes_it(tmp_path: Path) -> None:
    arguments = ["sim", "fork", "--policies", "cost", "--horizon-s", "120", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "report.html").exists()
    assert read_turns(tmp_path / "out" / "turns-cost.parquet")["prompt_tokens"]
