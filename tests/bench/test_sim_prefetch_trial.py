"""Prefetch is judged seed by seed against the same seed without it, beside what chance alone does."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.simulate.prefetch_trial import ARMS, changes, trial_table, trials, trials_of
from bench.simulate.trials import seeds_of
from kvtier.prefetch.events import Trigger
from loadback.commands import build


def figures(p50: float, p99: float, moved: float = 0.0) -> dict[str, Any]:
    tally = {name: 0.0 for kind in ("", "warm_", "recall_") for name in (f"{kind}wasted_bytes",)}
    tally |= {"moved_bytes": moved, "warmed_bytes": 0.0, "recalled_bytes": moved, "recall_wasted_bytes": moved / 2}
    return {"ttft_s": {"p50": p50, "p90": 2 * p50, "p99": p99}, "tokens_per_s": 100.0, "prefetch": {"decision": tally}}


def test_changes_are_against_the_same_seed() -> None:
    off = {(1, "off"): figures(1.0, 8.0), (2, "off"): figures(2.0, 10.0)}
    on = {(1, "on"): figures(1.0, 10.0), (2, "on"): figures(1.5, 10.0, 8e9)}
    chance = {(seed, "chance"): figures(1.0, 8.0) for seed in (1, 2)}
    told = changes(off | on | chance, [1, 2])
    assert told["off"]["p99"] == [8.0, 10.0]
    assert told["on_change"]["p50"] == pytest.approx([0.0, -0.25])
    assert told["on_change"]["p99"] == pytest.approx([0.25, 0.0])
    assert told["chance_change"]["p90"] == pytest.approx([0.0, -0.5])
    assert told["on_change"]["tokens_per_s"] == [0.0, 0.0]
    shown = StringIO()
    Console(file=shown, width=250).print(trial_table({"weka": told}, [1, 2]))
    assert "1.500 / 3.000 / 9.000" in shown.getvalue()
    assert "+12.5 ± 12.5" in shown.getvalue()
    assert (told["moved_gb"], told["wasted_gb"]) == ([0.0, 16.0], [0.0, 4.0])
    assert "8, 25 % in vain" in shown.getvalue()


def test_one_seed_has_no_standard_error() -> None:
    told = changes({(1, arm): figures(1.0, 8.0) for arm in ARMS}, [1])
    shown = StringIO()
    Console(file=shown, width=250).print(trial_table({"weka": told}, [1]))
    assert "±" not in shown.getvalue()


def test_arms_differ_in_prefetch_or_in_what_means_nothing() -> None:
    arms = trials_of(["fork"])["fork"].arms(1, 0.1)
    assert tuple(arms) == ARMS
    assert [each.settings.prefetch for each in arms.values()] == [frozenset(), frozenset(Trigger), frozenset()]
    assert {each.settings.horizon_s for each in arms.values()} == {90.0}
    off, stirred = arms["off"], arms["chance"]
    assert stirred.workload is off.workload
    assert stirred.settings.gap_factor == pytest.approx(1.0001)
    assert stirred.settings.event_lag_ms == pytest.approx(1.0001 * off.settings.event_lag_ms)
    assert off.cluster.pool_pages > 0


def test_wrong_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match="knows no chat: choose from weka, weka128"):
        trials_of(["chat"])
    with pytest.raises(ValueError, match="names nothing: choose from weka"):
        trials_of([])
    assert seeds_of("3, 1") == [3, 1]
    for text in ("one", "", "1,-2"):
        with pytest.raises(ValueError, match="--seeds wants numbers"):
            seeds_of(text)
    shown = CliRunner().invoke(build(), ["sim", "prefetch", "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"}).output
    assert all(name in shown for name in trials())


@pytest.mark.slow
def test_the_command_prints_a_row_a_trace() -> None:
    arguments = ["sim", "prefetch", "--experiments", "fork", "--seeds", "1,2", "--scale", "0.1", "--json"]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    line = json.loads(result.output.strip().splitlines()[-1])
    assert (line["experiment"], line["seeds"], list(line["configs"])) == ("prefetch", [1, 2], ["fork"])
    assert len(line["configs"]["fork"]["on_change"]["p99"]) == 2
