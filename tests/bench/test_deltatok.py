"""The experiment measures what it says, refuses wrong results, and prints one JSON object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.deltatok import experiment
from bench.deltatok.experiment import WrongPrompt, run_experiment, slope_per_100k
from bench.deltatok.talk import Talk
from engine_adapters.prompt.verify import Verdict
from loadback.__main__ import build

MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-agent"


def test_the_slope_is_per_100k_tokens() -> None:
    assert slope_per_100k([(0, 1.0), (200_000, 3.0), (400_000, 5.0)]) == pytest.approx(1.0)
    assert slope_per_100k([(5, 1.0)]) == 0.0


def test_a_talk_grows_by_what_it_is_asked_and_lends_a_turn() -> None:
    talk = Talk("some text of a library. " * 3000)
    before = talk.chars
    talk.grow(3000)
    assert 2500 < talk.chars - before < 3500
    count = len(talk.messages)
    sent = json.loads(talk.body(*talk.turn("output")))
    assert len(sent["messages"]) == count + 2 == len(talk.messages) + 2
    assert sent["messages"][-1]["content"] == "output"
    assert sent["messages"][-2]["tool_calls"][0]["id"] == sent["messages"][-1]["tool_call_id"]


@pytest.mark.slow
def test_the_command_prints_rows_and_slope() -> None:
    words = ["bench", "deltatok", "--contexts", "12000,25000", "--turns", "3", "--new-tokens", "300", "--json"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout.strip().splitlines()[-1])
    assert set(outcome) == {"rows", "chain_200k_ms", "slope_ms_per_100k"}
    for row, context in zip(outcome["rows"], (12_000, 25_000), strict=True):
        assert row["context_tokens"] == pytest.approx(context, rel=0.25)
        assert row["new_tokens"] == pytest.approx(300, rel=0.4)
        assert row["delta_cpu_ms"] > 0 < row["full_cpu_ms"]


def test_a_wrong_delta_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "verify", lambda state, model, body: Verdict(9, 9, 3))
    with pytest.raises(WrongPrompt, match="from token 3 on"):
        run_experiment(MODEL_DIR, [5000], 100, 1, lambda text: None)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(build(), ["bench", "deltatok", "--model-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert str(tmp_path) in result.output
