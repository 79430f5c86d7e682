"""The experiment measures what it says, refuses wrong results, and prints one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.deltatok import experiment
from bench.deltatok.dialects import measure_dialects
from bench.deltatok.experiment import WrongPrompt, run_experiment, slope_per_100k
from bench.deltatok.loop import longest_hold_ms, measure_loop
from bench.deltatok.memory import measure_memory
from bench.deltatok.talk import Talk
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.verify import Verdict
from loadback.commands import build

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def model() -> PromptModel:
    return PromptModel.open(MODEL_DIR, SglangProfile())


def test_every_protocol_says_the_same(model: PromptModel) -> None:
    rows = measure_dialects(model, 20_000, 2)
    assert [row.path for row in rows] == ["/v1/chat/completions", "/v1/messages", "/v1/responses"]
    tokens = [row.context_tokens for row in rows]
    assert max(tokens) - min(tokens) < max(tokens) * 0.02
    assert all(row.delta_cpu_ms > 0 for row in rows)


def test_threads_are_lighter_without_ids(model: PromptModel) -> None:
    with_ids, without = measure_memory(model, 20_000)
    assert (with_ids.exact_ids, without.exact_ids) == (True, False)
    assert with_ids.bytes_per_thread > without.bytes_per_thread + 4 * 90_000
    assert with_ids.fleet_bytes == 2000 * with_ids.bytes_per_thread


def test_a_call_that_keeps_the_interpreter_is_seen(model: PromptModel) -> None:
    numbers = list(range(2_000_000))
    parts = [numbers[start : start + 1000] for start in range(0, len(numbers), 1000)]
    assert longest_hold_ms(lambda _: sum(numbers)) > 5 * longest_hold_ms(lambda _: [sum(part) for part in parts])
    before = sys.getswitchinterval()
    rows = measure_loop(model, 20_000, 0.05)
    assert [(row.work, row.switch_ms) for row in rows] == [
        (work, switch) for switch in (5.0, 0.5) for work in ("nothing", "deltas", "whole")
    ]
    assert sys.getswitchinterval() == before


def test_a_wrong_delta_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "verify", lambda state, model, body: Verdict(9, 9, 3))
    with pytest.raises(WrongPrompt, match="from token 3 on"):
        run_experiment(MODEL_DIR, [5000], 100, 1, lambda text: None)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(build(), ["bench", "deltatok", "--model-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert str(tmp_path) in result.output
