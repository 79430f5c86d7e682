"""`loadback bench prefetch` on the emulator: its shape, and that what it claims is what happened."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench.prefetch.cli import as_json
from bench.prefetch.experiment import Outcome, Plan, Trial
from loadback.commands import build


def trial(repeat: int, arm: str, first: float, *, moved: int = 0, wasted: int = 0, text: str = "same") -> Trial:
    return Trial(repeat, arm, first, 10.0, {}, "p0", (text,), moved, moved, moved - wasted, wasted)


def test_the_json_has_medians_mismatches_and_the_wasted_share() -> None:
    trials = [trial(repeat, "off", 100.0 + repeat) for repeat in range(3)]
    trials += [
        trial(repeat, "on", 50.0 + repeat, moved=100, wasted=10 * repeat, text="same" if repeat else "else")
        for repeat in range(3)
    ]
    found = as_json(Outcome(Plan(repeats=3), tuple(trials)))
    assert found["first_call_ttft_ms"] == {"off": 101.0, "on": 51.0}
    assert found["later_call_ttft_ms"] == {"off": 10.0, "on": 10.0}
    assert (found["text_mismatches"], found["wasted_bytes_ratio"]) == (1, 0.1)


@pytest.mark.slow
def test_on_the_emulator_a_thread_that_was_displaced_returns_to_the_device() -> None:
    arguments = ["bench", "prefetch", "--engine", "emulator", "--repeats", "1", "--gap-s", "4", "--json"]
    ran = CliRunner().invoke(build(), arguments)
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout.splitlines()[-1])
    off, on = found["runs"]
    assert set(off["cached_by_tier"]) == {"L2"}
    assert set(on["cached_by_tier"]) == {"L1"}
    assert on["warmed_bytes"] > 0 == off["warmed_bytes"]
    assert found["text_mismatches"] == 0


@pytest.mark.slow
def test_idle_threads_are_measured() -> None:
    ran = CliRunner().invoke(build(), ["bench", "prefetch", "--idle", "20", "--seconds", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["threads"], found["looked_at"]) == (20, 0)  # a quiet fleet: nothing to look at
    assert 0 < found["planner_bytes"] < 20 * 10_000


def test_an_unknown_engine_is_refused() -> None:
    assert CliRunner().invoke(build(), ["bench", "prefetch", "--engine", "abacus"]).exit_code == 2
